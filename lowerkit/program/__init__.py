"""Contract 1: the Program that front ends produce and every later stage consumes, and its files."""
