"""The loops of each op: what they run over, and which dimensions they index."""
