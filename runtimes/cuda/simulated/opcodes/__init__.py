"""What instructions do: one file for each family of opcodes, and the table that finds the file.

A family reads an instruction with an ``InstructionReader``, asks for every modifier that it knows, and returns a step.
Opcodes of tensor cores and of asynchronous copies are not simulated: a family of theirs is one more file here, with a
line in ``table``.
"""
