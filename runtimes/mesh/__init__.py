"""Programs that several ranks run together: a mesh."""
