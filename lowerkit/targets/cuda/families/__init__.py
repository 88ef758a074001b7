"""The fast families: each writes kernels in Triton for the regions that it takes."""
