"""A numpy interpreter of the IR: the judge of passes and kernels."""
