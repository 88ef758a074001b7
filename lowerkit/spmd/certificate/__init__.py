"""Proofs that the ranks of a mesh compute what one device computes; they share no code with the passes that split."""
