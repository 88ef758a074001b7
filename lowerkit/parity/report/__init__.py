"""What a check found, as rows and as one HTML page."""
