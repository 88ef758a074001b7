"""Chooses a plan: which weights are split along which axis of a mesh, what splits the batch, where stages begin."""
