"""What a session holds in the memory of devices: arenas, weights and states."""
