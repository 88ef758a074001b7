"""Cases of symbolic sizes and how they run; ``symbolic_sizes.py`` chooses the sizes."""
