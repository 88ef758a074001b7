"""Passes that recognize and raise what a captured module holds to the lk dialect."""
