"""Passes that bring the torch dialect into one form before ops are raised."""
