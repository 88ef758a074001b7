"""The CPU target: kernel families, the compiler from kernel text to objects, and the linker of code images."""
