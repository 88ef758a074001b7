"""One rank of a compiled mesh: the same script under torchrun, under mpirun, and on several hosts.

lowerkit compile model.py:model --mesh tp=2 --shard plan.json -o two.lk
torchrun --nproc-per-node 2 docs/distributed/mesh_rank.py two.lk
mpirun -n 2 python -m mpi4py docs/distributed/mesh_rank.py two.lk
"""

import sys

import numpy as np

from lowerkit.launching.join import join_launched


def inputs_of(session, seed):
    """Returns an input of each kind that the model takes: every rank draws the same ones."""
    generator = np.random.default_rng(seed)
    shapes = [[1 if isinstance(extent, str) else extent for extent in spec.shape] for spec in session.signature.inputs]
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


if __name__ == "__main__":
    session = join_launched(sys.argv[1], deadline=60)  # returns when all ranks are there
    for request in range(3):
        outputs = session.run(*inputs_of(session, request))  # every rank makes the same calls
        if session.group.rank == 0:
            print(f"request {request}: sum {sum(float(output.sum()) for output in outputs):.6f}")
