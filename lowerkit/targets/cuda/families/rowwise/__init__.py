"""Families of rows: norms, softmax, reductions, running values and orders."""
