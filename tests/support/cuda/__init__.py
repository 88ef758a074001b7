"""Kernels that Triton compiles without a card, and what runs and mutates them on the simulated device."""
