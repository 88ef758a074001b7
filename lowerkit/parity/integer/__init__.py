"""Quantized models: kernels beside the int64 interpreter, ops beside the source framework."""
