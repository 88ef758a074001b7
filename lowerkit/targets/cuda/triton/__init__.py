"""Kernels in Triton: the language in which the fast families write, and the compiler behind it."""
