"""Numpy definitions of what the ops compute: slow, plain, and the judge of every other implementation."""
