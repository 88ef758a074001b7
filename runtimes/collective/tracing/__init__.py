"""Flight records of groups: written, read, merged, drawn."""
