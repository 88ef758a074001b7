"""Functions that write one op out of others, by subject; ``own_table.py`` has them all."""
