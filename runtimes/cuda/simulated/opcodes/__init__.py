"""What instructions do: one file for each family of opcodes, and the table that finds the file.

A family reads an instruction with an ``InstructionReader``, asks for every modifier that it knows, and returns a step.
Not simulated: clusters of more than one block (``mapa``, multicast), and the tensor cores of Blackwell (``tcgen05``).
"""
