"""The typed core: torch ops lowered by rules of ours to builtin tensors, in the types that PyTorch computes in."""
