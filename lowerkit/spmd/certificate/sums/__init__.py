"""Sums that are made of chunks: the lemmas by which they are the sums of one device, over the reals."""
