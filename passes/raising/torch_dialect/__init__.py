"""Reading, matching and building the torch dialect from Python."""
