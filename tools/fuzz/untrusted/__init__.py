"""Files and bytes of strangers: sound ones, and how they are damaged; for ``files.py`` and ``strangers.py``."""
