"""Programs for a mesh of ranks, made by hand."""
