"""Symbolic dims: expressions, and the guards under which a program is right."""
