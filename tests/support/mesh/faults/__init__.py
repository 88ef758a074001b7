"""Faults of ranks that run a compiled model: the cells, what each rank does, and what is demanded of it."""
