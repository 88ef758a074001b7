"""Tensor memory of Blackwell: 128 lanes of 512 columns of 32 bits for each block, and what tcgen05 does to it.

``cells`` holds the words, who has allocated them, and which operations still read or write them; ``shapes`` says which
thread has which word, ``descriptors`` what ``tcgen05.mma`` multiplies, ``pipelines`` when its products are complete.
"""
