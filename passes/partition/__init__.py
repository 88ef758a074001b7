"""Passes that give parts of a program to accelerators, each set of ops as a function of its own."""
