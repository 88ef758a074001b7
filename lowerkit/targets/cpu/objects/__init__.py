"""From kernel text to objects, and from objects to one code image."""
