"""Ops of AOTAutograd's graphs in terms of ops that lowerkit compiles: gradients above all."""
