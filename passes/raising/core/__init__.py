"""The typed core: torch ops lowered to builtin tensors and scalars by rules that know PyTorch's element types."""
