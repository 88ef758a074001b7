"""PTX text: from characters to a module of kernels, variables and instructions."""
