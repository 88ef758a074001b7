"""Factorizations of matrices, written out of simpler ops."""
