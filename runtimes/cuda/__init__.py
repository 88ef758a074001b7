"""What an artifact with CUDA code needs where it runs."""
