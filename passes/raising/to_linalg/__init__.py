"""Passes that lower what is left of a foreign dialect to builtin tensors."""
