"""Calls into packages of others, noted where a supervisor can read them."""
