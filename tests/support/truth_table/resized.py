"""Operators exported with every extent open and called at other extents than those of the export, beside eager.

A case is ``operator#sample[dtype]``. Its tensors are exported as they are drawn, with extents from 0 on; then each
extent N that they have is replaced, wherever it stands, by fewer and by more: elements are dropped, or taken again and
moved. What eager computes, ours computes or refuses by a guard; what eager refuses, ours must refuse, unless eager
looked at values.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.export import Dim

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.eager import quiet
from lowerkit.compiler import Compiled, CompileOptions, compile_program, lower_program
from lowerkit.conformance.suite import CaseReport
from lowerkit.errors import CodegenError, LowerkitError, PassError, VerifyError
from lowerkit.program.dtypes import to_numpy, to_torch
from tests.support.truth_table.operator_cells import OperatorCell, operator_cell
from tests.support.truth_table.suite import Calls, CellResult, equal, flat, is_plain

_INTERNAL = (CodegenError, PassError, VerifyError)
_MOST_EXTENTS = 3
_OF_VALUES = re.compile(
    r"singular|positive.definite|not be completed|the input is not|lengths|segment_length|offsets|[Pp]ivots|"
    r"probabilit|must be in|out of range|out of bounds|monotonic|sorted"
)
"""What eager says of values, which no guard on sizes can know."""


def outcomes(cell: OperatorCell) -> list[CellResult]:
    """Returns what became of one sample: one result for each replaced extent, or one for the whole."""
    with quiet(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = _opened(cell)
        if isinstance(opened, CellResult):
            return [opened]
        exported, tensors = opened
        try:
            compiled = compile_program(capture_exported(exported), CompileOptions(golden=False, workers=1))
        except LowerkitError as error:
            return [_refused(cell, error)]
        return [
            _called(cell, compiled, [resized(value, extent, other) for value in tensors], f"{extent}:{other}")
            for extent, other in _replacements(tensors)
        ]


def refusal(cell: OperatorCell) -> CellResult:
    """Returns whether one sample is refused whose extents are open, and is not where they are known.

    Nothing is compiled: what is refused, capture and the passes refuse.
    """
    with quiet(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = _opened(cell)
        if isinstance(opened, CellResult):
            return opened
        exported, tensors = opened
        options = CompileOptions(golden=False, workers=1)
        try:
            lower_program(capture_exported(exported), "canonical", options)
        except LowerkitError as error:
            found = _refused(cell, error)
        else:
            return CellResult(cell.name, "passed")
        try:
            known = torch.export.export(Calls([cell], [len(tensors)]).eval(), tuple(tensors), strict=False)
            lower_program(capture_exported(known), "canonical", options)
        except Exception:  # torch raises what it likes
            return CellResult(cell.name, "undefined", "refused with known extents too")
        return found


def _opened(cell: OperatorCell) -> tuple[torch.export.ExportedProgram, list[Tensor]] | CellResult:
    """Exports a sample, or says why it is not judged."""
    tensors = cell.tensors()
    if not _is_judged(cell, tensors):
        return CellResult(cell.name, "undefined", "random, refused by eager, or no plain tensor")
    try:
        return _exported(Calls([cell], [len(tensors)]).eval(), tuple(tensors)), tensors
    except Exception as error:  # torch raises what it likes
        return CellResult(cell.name, "undefined", f"torch.export: {' '.join(str(error).split())[:120]}")


def _refused(cell: OperatorCell, error: LowerkitError) -> CellResult:
    verdict = "internal" if isinstance(error, _INTERNAL) else "refused"
    return CellResult(cell.name, verdict, f"{error.code} {' '.join(str(error).split())[:200]}")


def _exported(module: torch.nn.Module, tensors: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Leaves every extent open, from 0 on where tracing allows: by names, so that equal ones have one."""
    auto = tuple(dict.fromkeys(range(value.dim()), Dim.AUTO) for value in tensors)
    exported = torch.export.export(module, tensors, strict=False, dynamic_shapes=(auto,))
    shapes = [node.meta["val"].shape for node in exported.graph.find_nodes(op="placeholder")][-len(tensors) :]
    names: dict[Any, Any] = {}
    named = tuple(
        {
            axis: None if isinstance(extent, int) else names.setdefault(extent.node.expr, Dim(f"d{len(names)}", min=0))
            for axis, extent in enumerate(shape)
        }
        for shape in shapes
    )
    try:
        return torch.export.export(module, tensors, strict=False, dynamic_shapes=(named,))
    except Exception:  # torch raises what it likes
        return exported


def resized(value: Tensor, extent: int, other: int) -> Tensor:
    """Gives every dim of ``extent`` elements ``other`` ones; floats that are there a second time are moved."""
    for dim in [dim for dim in range(value.dim()) if value.shape[dim] == extent]:
        value = value.index_select(dim, torch.arange(other) % extent)
        if other > extent and value.is_floating_point():
            more = value.narrow(dim, extent, other - extent)
            more.add_(torch.rand(more.shape, generator=torch.Generator().manual_seed(other)).to(value.dtype))
    return value.contiguous()


def _replacements(tensors: list[Tensor]) -> Iterator[tuple[int, int]]:
    extents = sorted({extent for value in tensors for extent in value.shape if extent > 1})[:_MOST_EXTENTS]
    for extent in extents:
        others = dict.fromkeys((0, 1, 2, 3, extent - 1, extent, extent + 1, extent + 6, 2 * extent))
        yield from ((extent, other) for other in others)


def _is_judged(cell: OperatorCell, tensors: list[Tensor]) -> bool:
    try:
        expected = _by_eager(cell, tensors)
        again = _by_eager(cell, tensors)
    except Exception:  # torch raises what it likes
        return False
    return bool(tensors and expected) and all(map(is_plain, expected)) and all(map(equal, expected, again))


def _by_eager(cell: OperatorCell, tensors: list[Tensor]) -> list[Tensor]:
    return flat(cell.call([value.clone() for value in tensors]))


def _called(cell: OperatorCell, compiled: Compiled, tensors: list[Tensor], form: str) -> CellResult:
    name = f"{cell.name}/{form}"
    expected, refusal = None, ""
    try:
        expected, again = _by_eager(cell, tensors), _by_eager(cell, tensors)
        if not all(map(is_plain, expected)) or not all(map(equal, expected, again)):
            return CellResult(name, "undefined", "random, or whatever the memory held")
    except Exception as error:  # torch raises what it likes
        refusal = " ".join(str(error).split())[:120]
    try:
        ours = [to_torch(array) for array in compiled.session.run(*(to_numpy(value) for value in tensors))]
    except LowerkitError as error:
        return CellResult(name, "refused", f"{error.code}, eager {'too' if refusal else 'does not'}")
    if expected is None:
        verdict = "undefined" if _OF_VALUES.search(refusal) else "wrong"
        return CellResult(name, verdict, f"eager refuses: {refusal}")
    wrong = next((finding.wrong for finding in cell.judge(tensors, ours, expected) if finding.wrong), "")
    return CellResult(name, "wrong" if wrong else "passed", wrong)


@dataclass(frozen=True)
class Resized:
    """The suite: a case is the name of an operator's cell as it is drawn, without its form."""

    only_refusals: bool

    def run(self, name: str) -> CaseReport:
        """Calls one sample at all its extents, or asks whether it is refused; the notes are the results."""
        cell = operator_cell(f"{name}/drawn")
        found: list[Any] = [refusal(cell)] if self.only_refusals else outcomes(cell)
        return CaseReport([msgspec.json.encode(result).decode() for result in found])


def make_suite(argument: str) -> Resized:
    """Makes the suite in a worker; ``refusals`` as the argument calls nothing."""
    torch.set_num_threads(1)
    return Resized(argument == "refusals")
