"""What a certificate states of weights, and the bytes of the weights in the artifact."""
