"""The program that plans are tried on: short, canonical, with a store of its own; nothing of the user's is changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowerkit.errors import UsageError
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.pipeline import STAGES, pass_context, run_stages
from lowerkit.program.locations import origin_of
from lowerkit.program.program import Program
from lowerkit.spmd.auto.shorten import Counts, shorten
from lowerkit.spmd.auto.trial import Machine, Trial

_DATA = ("lk.weight", "arith.constant", "tensor.empty", "torch.constant.", "torch.prim.", "torch_c.")
"""Ops that compute nothing; a weight that two modules share is where the first one is written."""


@dataclass(frozen=True)
class Draft:
    """What plans are chosen for.

    Attributes:
        trial: the program of one device.
        paths: the modules of the whole program, in the order in which they run.
        inputs: names of the inputs and their leading extents as text, None where there is none.
        source: what the program was captured from, for people.
    """

    trial: Trial
    paths: tuple[str, ...]
    inputs: dict[str, str | None]
    source: str


def draft_of(program: Program, machine: Machine) -> Draft:
    """Returns the draft of a program, which stays as it is.

    Raises:
        UsageError: LK1011, it is split among ranks already, or beyond the stage where it could be.
        LowerkitError: it cannot be lowered.
    """
    if program.mesh or STAGES.index(program.stage) > STAGES.index("canonical"):
        raise UsageError(
            "LK1011",
            f"{program.source} is at stage {program.stage!r} already: a program is split among ranks on its way there",
            hint="start from a stage before canonical, or from the model",
        )
    ops = operations(main_block(program.module))
    paths = dict.fromkeys(origin_of(op.location).module for op in ops if not op.name.startswith(_DATA))
    short = replace(program.copy(), weights=program.weights.fork())
    counts = shorten(short.module)
    if not _verifies(short.module):  # layers that are not one behind the other
        short, counts = replace(program.copy(), weights=program.weights.fork()), Counts()
    context = pass_context(short)
    run_stages(short, "canonical", context)
    inputs = {spec.name: str(spec.shape[0]) if spec.shape else None for spec in program.signature.inputs}
    return Draft(Trial(short.module, context, counts, machine), tuple(paths), inputs, program.source)


def _verifies(module: ir.Module) -> bool:
    try:
        return module.operation.verify()
    except ir.MLIRError:
        return False
