"""Times lowerkit beside its peers, interleaved in one run."""
