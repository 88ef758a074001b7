"""How the loops of a region become kernels: which loops threads share out, and which nests share a kernel."""
