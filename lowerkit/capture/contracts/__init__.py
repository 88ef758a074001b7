"""What operators ask of their arguments: one record each, which every front end reads."""
