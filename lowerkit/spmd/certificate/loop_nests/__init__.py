"""Which elements of its operands an op reads for an element of its result: this validator's own table."""
