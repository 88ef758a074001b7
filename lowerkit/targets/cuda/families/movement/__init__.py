"""Families that move elements: by index, and into parts of a result."""
