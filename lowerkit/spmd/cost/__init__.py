"""What a program costs on devices and links that are described by a few numbers, before anything is compiled."""
