"""Elementwise loop nests, with transposes and broadcasts."""
