"""Launches in a queue: those that were captured, and those that start before the one in front of them has ended."""
