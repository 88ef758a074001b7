"""Groups of ranks that communicate: rendezvous, authentication, and numpy arrays through the native collectives.

The words are those of ``runtimes/native/collective/lowerkit_collective.h``. Nothing here imports torch.
"""
