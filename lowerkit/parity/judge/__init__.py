"""The judge of single ops, and the list of eager's own errors: one for the witness, the truth table and fuzzers."""
