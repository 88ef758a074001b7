"""The typed core: torch ops on elements, lowered by rules of ours in the types that PyTorch computes in."""
