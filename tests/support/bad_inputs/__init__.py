"""Bad inputs by number: what a compiler may be handed, and what it must answer.

Each case writes its files into a folder and returns the command lines to run there. The numbers are those of the list
in the docstring of ``tests/robustness/test_bad_inputs.py``.
"""
