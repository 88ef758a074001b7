"""Gradients in terms of ops that lowerkit compiles, where PyTorch has no decomposition of its own."""
