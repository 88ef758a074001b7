"""Passes that decide what one kernel computes: merged loops, epilogues, regions."""
