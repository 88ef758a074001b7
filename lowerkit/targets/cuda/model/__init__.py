"""What is known of a card without one: its limits, and how long a launch takes on it at least and probably."""
