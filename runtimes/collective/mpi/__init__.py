"""The engine ``mpi``: a group's operations carried out by MPI, through mpi4py.

Ranks are processes that ``mpirun`` started. They meet through the group's store as with the native engine, to learn
who is who in MPI; what follows is MPI's own.
"""
