"""Conformance: public test suites of others run case by case, each case in a process that it may bring down."""
