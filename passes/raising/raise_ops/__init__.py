"""Passes that raise single ops of the torch dialect to ops of lk."""
