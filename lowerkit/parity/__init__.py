"""Parity: what is compiled is compared with what the framework computes."""
