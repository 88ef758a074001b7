"""What a process maps of an artifact, and whether it has the room."""
