"""``emit-c``: an artifact as an object file, a header and an example, for programs without Python."""
