"""Random functions: how they grow, run, are judged, and are made smaller; ``graphs.py`` draws them."""
