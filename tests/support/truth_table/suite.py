"""Runs cells: many in one compiled program, which is halved where it is refused or fails, until single cells remain.

A case of :mod:`lowerkit.conformance.runner` is a list of cells; a process that dies is charged to the case, and the
driver halves that.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.eager import quiet
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.conformance.suite import CaseReport
from lowerkit.errors import CodegenError, LowerkitError, PassError, VerifyError
from lowerkit.parity.judge.units import Finding
from lowerkit.program.dtypes import to_numpy, to_torch
from tests.support.truth_table.cells import cells
from tests.support.truth_table.operator_cells import operator_cell

_INTERNAL = (CodegenError, PassError, VerifyError)


class _NotExportedError(Exception):
    """torch.export refused what eager computes."""


FAILED = ("wrong", "internal", "crashed", "hung")
"""The verdicts of :class:`CellResult` that must not be."""


class AnyCell(Protocol):
    """A cell of the grid, or of an operator."""

    @property
    def name(self) -> str:
        """Tells the cell apart from all others."""
        ...

    @property
    def symbolic(self) -> bool:
        """Whether every extent is left open."""
        ...

    def tensors(self) -> list[Tensor]:
        """Returns the tensor arguments."""
        ...

    def call(self, tensors: list[Tensor]) -> Any:
        """Calls what the cell is of."""
        ...

    def judge(self, tensors: list[Tensor], ours: list[Tensor], eager: list[Tensor]) -> list[Finding]:
        """Compares outputs."""
        ...


def find_cell(name: str) -> AnyCell:
    """Returns the cell of a name."""
    return operator_cell(name) if "#" in name.partition("(")[0] else cells()[name]


class CellResult(msgspec.Struct, frozen=True):
    """What became of a cell: ``passed``, ``better`` (right where eager is not), ``refused``, ``undefined`` (eager
    refuses), ``wrong``, ``internal``, ``crashed``, ``hung``."""

    name: str
    verdict: str
    reason: str = ""


class Calls(nn.Module):
    """Calls all cells, each with tensors of its own."""

    def __init__(self, called: Sequence[AnyCell], counts: Sequence[int]) -> None:
        super().__init__()
        self.called, self.counts = called, counts

    def forward(self, *tensors: Tensor) -> list[Any]:
        results, start = [], 0
        for cell, count in zip(self.called, self.counts, strict=True):
            results.append(cell.call(list(tensors[start : start + count])))
            start += count
        return results


def run_cells(wanted: Sequence[AnyCell]) -> list[CellResult]:
    """Runs cells in as few programs as can be."""
    results: list[CellResult] = []
    ready: list[tuple[AnyCell, list[Tensor], list[Tensor]]] = []
    for cell in wanted:
        try:
            tensors = cell.tensors()
            with quiet(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = flat(cell.call([value.clone() for value in tensors]))
                again = flat(cell.call([value.clone() for value in tensors]))
        except Exception as error:  # torch raises what it likes
            results.append(CellResult(cell.name, "undefined", [*str(error).splitlines(), type(error).__name__][0][:80]))
            continue
        if not expected or not all(map(is_plain, expected)):
            results.append(CellResult(cell.name, "undefined", "gives no plain tensor"))
        elif not all(map(equal, expected, again)):
            results.append(CellResult(cell.name, "undefined", "random, or whatever the memory held"))
        else:
            ready.append((cell, tensors, expected))
    return results + _run(ready)


def _run(ready: Sequence[tuple[AnyCell, list[Tensor], list[Tensor]]]) -> list[CellResult]:
    if not ready:
        return []
    try:
        outputs = _computed(ready)
    except _NotExportedError as error:
        if len(ready) == 1:
            return [CellResult(ready[0][0].name, "undefined", f"torch.export: {error}"[:80])]
        return _parts(ready)
    except LowerkitError as error:
        if len(ready) == 1:
            verdict = "internal" if isinstance(error, _INTERNAL) else "refused"
            text = " ".join(" ".join([f"{error.code} {error.message}", *error.details]).split())
            return [CellResult(ready[0][0].name, verdict, text[:300])]
        return _parts(ready)
    except Exception as error:
        if len(ready) == 1:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return [CellResult(ready[0][0].name, "internal", text)]
        return _parts(ready)
    found, start = [], 0
    for cell, tensors, expected in ready:
        mine = outputs[start : start + len(expected)]
        start += len(expected)
        found.append(_judged(cell, tensors, expected, mine))
    return found


def _parts(ready: Sequence[tuple[AnyCell, list[Tensor], list[Tensor]]]) -> list[CellResult]:
    """Runs parts of what failed: the cells of each op for themselves, then quarters of them, then single ones."""
    by_op: dict[str, list[tuple[AnyCell, list[Tensor], list[Tensor]]]] = defaultdict(list)
    for one in ready:
        by_op[re.split(r"[#(]", one[0].name, maxsplit=1)[0]].append(one)
    size = max(1, len(ready) // 4)
    quarters = [ready[start : start + size] for start in range(0, len(ready), size)]
    parts = list(by_op.values()) if len(by_op) > 1 else quarters
    return [result for part in parts for result in _run(part)]


def _judged(cell: AnyCell, tensors: list[Tensor], expected: list[Tensor], ours: list[Tensor]) -> CellResult:
    findings = cell.judge(tensors, ours, expected)
    wrong = next((finding.wrong for finding in findings if finding.wrong), "")
    better = next((finding.better for finding in findings if finding.better), "")
    return CellResult(cell.name, "wrong" if wrong else "better" if better else "passed", wrong or better)


def _computed(ready: Sequence[tuple[AnyCell, list[Tensor], list[Tensor]]]) -> list[Tensor]:
    module = Calls([cell for cell, _, _ in ready], [len(tensors) for _, tensors, _ in ready]).eval()
    flat = tuple(tensor for _, tensors, _ in ready for tensor in tensors)
    extents = tuple(
        dict.fromkeys(range(tensor.dim()), torch.export.Dim.AUTO) if cell.symbolic else None
        for cell, tensors, _ in ready
        for tensor in tensors
    )
    with quiet(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(module, flat, strict=False, dynamic_shapes=(extents,))
        except Exception as error:  # torch raises what it likes
            raise _NotExportedError(" ".join(str(error).split()) or type(error).__name__) from error
    program = capture_exported(exported)
    compiled = compile_program(program, CompileOptions(golden=False, workers=1))
    return [to_torch(array) for array in compiled.session.run(*(to_numpy(tensor) for tensor in flat))]


def is_plain(value: Tensor) -> bool:
    """Whether a tensor is of a kind that can be compared."""
    return value.layout is torch.strided and not value.is_complex() and not value.is_quantized


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN being one."""
    return one.shape == other.shape and bool(((one == other) | (torch.isnan(one) & torch.isnan(other))).all())


def flat(outputs: Any) -> list[Tensor]:
    """The tensors of what an operator gives."""
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


class TruthTable:
    """The suite: a case is a JSON list of the names of cells."""

    def run(self, name: str) -> CaseReport:
        """Runs the cells of a case; the notes are their results."""
        wanted = [find_cell(each) for each in json.loads(name)]
        return CaseReport([msgspec.json.encode(result).decode() for result in run_cells(wanted)])


def make_suite(argument: str) -> TruthTable:
    """Makes the suite in a worker; it has no argument."""
    torch.set_num_threads(1)
    return TruthTable()
