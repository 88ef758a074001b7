"""The version of lowerkit: what artifacts and caches state."""

__version__ = "0.1.0"
