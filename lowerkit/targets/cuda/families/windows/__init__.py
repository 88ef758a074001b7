"""Convolutions and pools: windows that slide over an image."""
