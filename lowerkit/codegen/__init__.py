"""Code generation: fused regions to kernels, buffers and steps. What is in this folder knows no target."""
