"""Reads a ``.pt2`` without running anything that it says."""
