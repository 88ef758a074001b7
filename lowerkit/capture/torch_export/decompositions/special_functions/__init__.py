"""Functions of single elements, written out of simpler ops."""
