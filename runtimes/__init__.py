"""The thin runtime: loads an artifact and runs it. Needs numpy, msgspec and the native module, nothing of the compiler.

Import the parts you need: :mod:`lowerkit.runtimes.session`, :mod:`lowerkit.runtimes.manifest`,
:mod:`lowerkit.runtimes.expressions`. This module imports nothing, so that naming it costs nothing.
"""
