"""Which algorithm takes which size, measured on a machine."""
