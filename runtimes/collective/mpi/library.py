"""Loads mpi4py, and MPI with it: the first import starts MPI in this process, and its end ends it."""

from __future__ import annotations

from typing import Any

from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.failures import usage


def load_mpi() -> Any:
    """Returns the module ``mpi4py.MPI``, initialized for calls from several threads.

    Raises:
        UsageError: LK1007, there is no mpi4py or no MPI library; LK1010, this MPI takes calls from one thread alone.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError("LK1007", f"engine='mpi' needs mpi4py: {error}", hint="pip install 'lowerkit[mpi]'") from error
    except RuntimeError as error:  # mpi4py looks for libmpi when it is imported
        raise UsageError(
            "LK1007", f"mpi4py finds no MPI library: {error}", hint="install Open MPI or MPICH, for instance"
        ) from error
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:  # futures are completed by threads of their own
        raise usage(
            "engine='mpi' needs an MPI that takes calls from several threads at a time (MPI_THREAD_MULTIPLE)",
            hint="mpi4py asks for it unless mpi4py.rc.thread_level says otherwise",
        )
    return MPI
