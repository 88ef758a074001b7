"""``If``, ``Loop`` and ``Scan``: unrolled where their course is constant, else functions."""
