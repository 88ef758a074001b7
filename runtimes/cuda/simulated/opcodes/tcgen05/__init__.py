"""tcgen05: tensor memory and the matrix products of Blackwell; ``forms`` finds the file of an instruction."""
