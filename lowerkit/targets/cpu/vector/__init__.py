"""Vector functions, and the fused body of a region on vectors."""
