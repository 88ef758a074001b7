"""Attention: a tile of queries over all keys, keys dealt out over blocks where queries are few."""
