"""Ranks that somebody else started: which one this process is, and where it meets the others."""
