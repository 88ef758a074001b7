"""What works behind the back of threads: bulk copies, the mbarriers that they complete at, and matrices of wgmma.

``tensor_map`` describes tensors to the TMA unit, ``bulk_copies`` are its copies under way, ``memory_barriers`` count
what arrives, ``matrix_descriptors`` finds the operands of wgmma in shared memory.
"""
