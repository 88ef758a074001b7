"""What the CPU runtime asks of the machine: its cores and its features."""
