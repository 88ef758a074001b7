"""Proofs of the kernels that the CUDA families write: representative regions, sweeps, coverage, mutants."""
