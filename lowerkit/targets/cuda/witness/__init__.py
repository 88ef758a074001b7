"""Witnesses for a region: Triton's own interpreter on the text of its kernels, and the PTX alone on a fresh device."""
