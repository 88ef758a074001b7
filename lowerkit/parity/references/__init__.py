"""What is compared with: eager, its nodes, float64, perturbed runs."""
