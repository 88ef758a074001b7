"""The CUDA target: regions as kernels of thousands of threads, in PTX and machine code."""
