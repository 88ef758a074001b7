"""What is compared: the export, the outputs, the value of every region."""
