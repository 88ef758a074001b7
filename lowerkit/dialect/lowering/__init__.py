"""Lowerings of the computing ops to linalg, tensor, arith, math and scf: general and correct rather than fast."""
