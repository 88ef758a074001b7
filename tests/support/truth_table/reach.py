"""Which ops of the torch dialect remain when the last pass of raising begins: those that none of its rules took.

A case is ``operator/form``: every sample of an operator (:mod:`tests.support.truth_table.operators`), or every element
type of an elementwise overload (:mod:`tests.support.truth_table.registry`), in one program, with static (``drawn``) or
open extents (``symbolic:drawn``). No code is made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec
import torch

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.eager import quiet
from lowerkit.conformance.suite import CaseReport
from lowerkit.errors import LowerkitError
from lowerkit.mlir import ir, walk
from lowerkit.passes.source_location import op_name, signature_text
from lowerkit.pipeline import pass_context, run_passes, stage_passes
from tests.support.truth_table.cells import cells
from tests.support.truth_table.forms import SYMBOLIC
from tests.support.truth_table.operator_cells import OperatorCell
from tests.support.truth_table.operators import drawn, operator_rows
from tests.support.truth_table.registry import rows
from tests.support.truth_table.suite import AnyCell, Calls, flat, is_plain

_SAMPLES = {
    "drawn": {"f32": 2, "i64": 1, "u8": 1, "bool": 1},
    f"{SYMBOLIC}drawn": {"f32": 1, "i64": 1},
}
"""Form -> element type -> how many samples of an operator: a run over all takes a quarter of an hour."""
_LAST = ("torch-to-linalg", "lower-types")
"""Passes that take, or refuse, whatever is left."""
_NO_OPS = ("torch.constant.", "torch.prim.ListConstruct", "torch_c.")
_MIXED = {"f32", "i64", "u8", "bool", "bf16"}


class Reached(msgspec.Struct, frozen=True):
    """What remains of one program.

    Attributes:
        case: ``operator/form``, behind it the cell where one is alone in its program.
        ops: name of an op -> its signature, for each distinct signature.
        refused: why there is no program, empty where there is one.
    """

    case: str
    ops: dict[str, list[str]]
    refused: str = ""


def case_names() -> list[str]:
    """Returns the cases, in order: first PyTorch's operators, then the overloads that work on single elements."""
    return [f"{name}/{form}" for group in (operator_rows(), rows()) for form in _SAMPLES for name in group]


def cells_of(case: str) -> list[AnyCell]:
    """Returns the cells of a case; none where an operator has no samples of tensors."""
    name, _, form = case.partition("/")
    if name in operator_rows():
        return list(_of_operator(name, form))
    kind = "symbolic" if form.startswith(SYMBOLIC) else "grid"
    return [
        cell
        for cell in cells().values()
        if cell.row.name == name and cell.form == kind and (set(cell.dtypes) <= _MIXED or kind == "symbolic")
    ]


def _of_operator(name: str, form: str) -> Iterator[AnyCell]:
    for dtype, most in _SAMPLES[form].items():
        try:
            with quiet():
                samples = drawn(name, dtype)
        except Exception:  # the makers of samples raise what they like
            continue
        largest = sorted(samples, key=lambda sample: -sum(map(_size, sample.leaves)))[:most]
        yield from (OperatorCell(name, sample.number, dtype, form) for sample in largest)


def _size(leaf: Any) -> int:
    return leaf.numel() if isinstance(leaf, torch.Tensor) else 0


def reached(case: str) -> list[Reached]:
    """Returns what remains of a case's programs: one where all cells go into one, else one for each cell."""
    wanted = [cell for cell in cells_of(case) if _is_defined(cell)]
    if len(wanted) > 1:
        together = _reached(case, wanted)
        if not together.refused:
            return [together]
    return [_reached(f"{case} {cell.name}", [cell]) for cell in wanted]


def _is_defined(cell: AnyCell) -> bool:
    try:
        with quiet(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = flat(cell.call([value.clone() for value in cell.tensors()]))
    except Exception:  # torch raises what it likes
        return False
    return bool(outputs) and all(map(is_plain, outputs))


def _reached(case: str, wanted: Sequence[AnyCell]) -> Reached:
    tensors = [cell.tensors() for cell in wanted]
    module = Calls(wanted, [len(group) for group in tensors]).eval()
    extents = tuple(
        dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO) if cell.symbolic else None
        for cell, group in zip(wanted, tensors, strict=True)
        for value in group
    )
    try:
        with quiet(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = tuple(value for group in tensors for value in group)
            exported = torch.export.export(module, inputs, strict=False, dynamic_shapes=(extents,))
    except Exception as error:  # torch raises what it likes
        return Reached(case, {}, f"torch.export: {' '.join(str(error).split())[:120]}")
    try:
        program = capture_exported(exported)
        passes = takewhile(lambda each: each.name not in _LAST, stage_passes("raised"))
        run_passes(program, list(passes), pass_context(program))
    except LowerkitError as error:
        text = " ".join([error.code, error.message, *error.details])
        return Reached(case, {}, " ".join(text.split())[:240])
    return Reached(case, remaining_ops(program.module))


def remaining_ops(module: ir.Module) -> dict[str, list[str]]:
    """Returns the names of the torch ops of a module, constants, lists and casts left out, with their signatures."""
    found: dict[str, dict[str, None]] = {}

    def collect(op: ir.Operation) -> None:
        if op.name.startswith("torch") and not op.name.startswith(_NO_OPS):
            found.setdefault(op_name(op), {})[signature_text(op)] = None

    walk(module.operation, collect)
    return {name: list(signatures) for name, signatures in found.items()}


class Reach:
    """The suite: the notes of a case are its programs."""

    def run(self, name: str) -> CaseReport:
        """Captures and raises one case."""
        return CaseReport([msgspec.json.encode(result).decode() for result in reached(name)])


def make_suite(argument: str) -> Reach:
    """Makes the suite in a worker; it has no argument."""
    torch.set_num_threads(1)
    return Reach()
