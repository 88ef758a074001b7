"""How `lowerkit run` runs an artifact: alone, or a mesh as processes, as a launcher's ranks, or in simulation."""
