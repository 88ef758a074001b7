"""The fault matrix: faults x operations x transports, each cell run by processes of its own under a deadline.

``cells.py`` says what is run and what must come of it, ``rank.py`` is the program of one rank, ``driver.py`` starts the
ranks and judges what they say, ``namespaces.py`` puts them on either side of a wire.
"""
