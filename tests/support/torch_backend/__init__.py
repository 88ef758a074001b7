"""Targets and devices for tests."""
