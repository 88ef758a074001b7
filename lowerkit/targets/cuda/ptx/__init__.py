"""From the text of kernels to PTX, machine code and the image of an artifact."""
