"""Passes that bring explicit quantization to the integer level, and what is left of it to elementwise ops."""
