"""Kernels that move elements: copies, look-ups, scatters, rotary embedding."""
