"""Passes that recognize what a model writes out of many ops."""
