"""Builds kernel text: SSA values, indices, loops, buffers, and the frame around a kernel."""
