"""Functions that write one op out of others, by subject; :mod:`lowerkit.capture.own_decompositions` has them all."""
