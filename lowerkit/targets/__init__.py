"""What lowerkit compiles for: one description per target."""
