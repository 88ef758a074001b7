"""The truth table: every op that capture knows, by element types, special values and shapes, beside eager PyTorch."""
