"""Softmax, norms, reductions, scans and pools."""
