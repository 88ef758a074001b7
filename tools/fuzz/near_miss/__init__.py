"""Near misses of recognised patterns: how they are drawn and judged; ``near_misses.py`` runs them."""
