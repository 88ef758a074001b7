"""Passes that bring a module into one shape: folding, cleaning up, joining equal work."""
