"""Writes artifacts. They are read by :mod:`lowerkit.runtimes.artifact_reader`, which needs nothing of the compiler."""
