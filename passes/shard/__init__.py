"""From the program of one device to the program that every rank of a mesh runs."""
