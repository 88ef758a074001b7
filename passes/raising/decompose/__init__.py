"""Passes that write ops of the torch dialect out of simpler ones."""
