"""Convolutions: direct, depthwise, on AMX tiles."""
