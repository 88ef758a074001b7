"""Copies of one model that share the rows of a batch."""
