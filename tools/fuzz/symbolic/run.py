"""Compiles cases of symbolic sizes as one program, and judges each of them at further sizes.

What a case takes is decided by its own exported program. Cases that take their sizes run together; sizes that a case
must refuse are given to it alone, with the example's for all others. Kernels run between guard pages.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

import lowerkit
from graph.run import Outcome
from guarded_memory import guarded_results
from lowerkit.errors import LowerkitError, RuntimeFault
from symbolic.case import Case
from symbolic.cases import CASES

EXTENTS = (1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 24, 31, 32, 33)
DECLINED = ("LK4001", "LK4002", "LK2001")
TOLERANCE = 2e-4
"""Of the largest value: f32 against float64 over at most a few thousand terms; an index that is off is far above it."""

Shapes = list[tuple[int, ...]]
Job = tuple[str, str]


@dataclass
class Finding:
    """How one job ended; see the verdicts of ``symbolic_sizes.py``."""

    case: str
    setting: str
    verdict: str = "ok"
    ran: int = 0
    refused: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def note(self, verdict: str, text: str) -> None:
        """Takes the worst verdict; ``refused`` is none of its own."""
        self.verdict = verdict
        self.notes.append(text[:400])


@dataclass
class Exported:
    """A job that torch exported alone."""

    finding: Finding
    case: Case
    dims: tuple[dict[int, Any], ...]
    module: nn.Module
    wide: nn.Module
    program: Any
    outputs: slice
    """Which outputs of the whole are its own."""

    def takes(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the exported program itself runs at these sizes."""
        try:
            with torch.no_grad():
                self.program(*inputs)
        except Exception:  # torch raises what it likes
            return False
        return True


class Together(nn.Module):
    """Several modules side by side."""

    def __init__(self, parts: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.counts = list(counts)

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The results of all parts."""
        results: list[Any] = []
        for part, count in zip(self.parts, self.counts, strict=True):
            results.append(part(*tensors[:count]))
            tensors = tensors[count:]
        return tuple(results)


def settings(case: Case) -> dict[str, tuple[dict[int, Any], ...]]:
    """How the dims of a case are made symbolic: all of them, or those of one extent by one name."""
    auto: Any = torch.export.Dim.AUTO
    shapes = case.shapes
    found = {"auto": tuple({axis: auto for axis in range(len(shape)) if axis not in case.fixed} for shape in shapes)}
    free = [axis for axis in range(len(shapes[0])) if axis not in case.fixed]
    for axis in free[:1] + free[-1:] if len(free) > 1 else free:
        extent = shapes[0][axis]
        named = torch.export.Dim(f"n{axis}", min=0, max=64)
        found[f"dim{axis}"] = tuple(
            {axis: named} if len(shape) > axis and shape[axis] == extent else {} for shape in shapes
        )
    return found


def further_shapes(case: Case, dims: Sequence[dict[int, Any]], count: int, seed: str) -> list[Shapes]:
    """Returns shapes for the inputs; extents that are equal in the example stay equal."""
    generator = random.Random(seed)
    found = [[tuple(shape) for shape in case.shapes]]
    for number in range(count):
        chosen: dict[int, int] = {}
        shapes: Shapes = []
        for shape, symbolic in zip(case.shapes, dims, strict=True):
            extents = list(shape)
            for axis in symbolic:
                pick = EXTENTS[number] if number < 4 else generator.choice(EXTENTS)
                extents[axis] = chosen.setdefault(shape[axis], pick * generator.choice((1, case.multiple)))
            shapes.append(tuple(extents))
        found.append(shapes)
    return found


def outcome_of(jobs: Sequence[Job], count: int, seed: int) -> Outcome:
    """Judges the jobs as one program. ``detail`` is the findings as JSON where the kind is ``judged``."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported, findings = _exported_alone(jobs)
        if exported:
            try:
                session = _session(exported)
            except LowerkitError as error:
                kind = "declined" if error.code in DECLINED else "internal"
                return Outcome(kind, error.code, str(error))
            except Exception as error:
                return Outcome("internal", "", f"{type(error).__name__}: {error}")
            _judge(exported, session, count, seed)
    return Outcome("judged", "", json.dumps([asdict(finding) for finding in findings]))


def _exported_alone(jobs: Sequence[Job]) -> tuple[list[Exported], list[Finding]]:
    exported: list[Exported] = []
    findings: list[Finding] = []
    for name, setting in jobs:
        finding = Finding(name, setting)
        findings.append(finding)
        case = CASES[name]
        dims = settings(case)[setting]
        module = case.module().eval()
        try:
            program = torch.export.export(module, case.inputs(case.shapes), dynamic_shapes=(dims,), strict=False)
        except Exception as error:
            finding.note("not exported", str(error).splitlines()[0] if str(error) else type(error).__name__)
            continue
        first = exported[-1].outputs.stop if exported else 0
        outputs = slice(first, first + len(program.graph_signature.user_outputs))
        wide = copy.deepcopy(module).double()
        exported.append(Exported(finding, case, dims, module, wide, program.module(), outputs))
    return exported, findings


def _session(exported: Sequence[Exported]) -> Any:
    together = Together([job.module for job in exported], [len(job.case.shapes) for job in exported])
    example = tuple(tensor for job in exported for tensor in job.case.inputs(job.case.shapes))
    shapes: list[Any] = []
    for number, job in enumerate(exported):
        named: dict[str, Any] = {}  # each job has dims of its own, also where their names are equal
        for dims in job.dims:
            shapes.append({axis: _renamed(dim, number, named) for axis, dim in dims.items()})
    program = torch.export.export(together.eval(), example, dynamic_shapes=(tuple(shapes),), strict=False)
    return lowerkit.compile(program, threads=1, workers=1).session


def _renamed(dim: Any, number: int, named: dict[str, Any]) -> Any:
    if dim is torch.export.Dim.AUTO:
        return dim
    name = f"job{number}_{dim.__name__}"
    return named.setdefault(name, torch.export.Dim(name, min=dim.min, max=dim.max))


def _judge(exported: Sequence[Exported], session: Any, count: int, seed: int) -> None:
    plans = [
        further_shapes(job.case, job.dims, count, f"{seed} {job.finding.case} {job.finding.setting}")
        for job in exported
    ]
    example = [job.case.inputs(job.case.shapes) for job in exported]
    for number in range(count + 1):
        given = [job.case.inputs(plan[number]) for job, plan in zip(exported, plans, strict=True)]
        taken = [job.takes(inputs) for job, inputs in zip(exported, given, strict=True)]
        together = [inputs if takes else base for inputs, takes, base in zip(given, taken, example, strict=True)]
        results = _run(session, together, at_end=number % 2 == 0)
        for place, job in enumerate(exported):
            alone = results
            if not taken[place] or isinstance(results, Exception):
                alone = _run(session, [*example[:place], given[place], *example[place + 1 :]], at_end=number % 2 == 0)
            _compare(job, alone, plans[place][number], given[place], taken=taken[place])


def _run(session: Any, inputs: Sequence[Sequence[torch.Tensor]], *, at_end: bool) -> Any:
    """The outputs, or the exception that the call ended in."""
    arrays = [np.asarray(tensor.numpy()) for tensors in inputs for tensor in tensors]
    try:
        return guarded_results(session, arrays, at_end=at_end)
    except Exception as error:
        return error


def _compare(job: Exported, results: Any, shapes: Shapes, inputs: Sequence[torch.Tensor], *, taken: bool) -> None:
    finding = job.finding
    if isinstance(results, RuntimeFault) and results.code == "LK8004":
        assumed = finding.setting == "auto" and any(extent < 2 for shape in shapes for extent in shape)
        if taken and not assumed:  # torch's own trace assumed at least 2, so it says of smaller ones nothing
            finding.refused.append(f"{shapes}: {results}"[:300])
        return
    if isinstance(results, Exception):
        finding.note("internal", f"{shapes}: {type(results).__name__}: {results}")
        return
    try:
        with torch.no_grad():
            wanted = pytree.tree_leaves(job.wide(*(x.double() if x.is_floating_point() else x for x in inputs)))
    except Exception as error:
        finding.note("wrong", f"{shapes}: eager refuses it ({str(error).splitlines()[0][:120]}), ran")
        return
    finding.ran += 1
    for result, want in zip(results[job.outputs], wanted, strict=True):
        expected, got = want.double().numpy(), np.asarray(result, np.float64)
        bound = TOLERANCE * max(1.0, float(np.nanmax(np.abs(expected), initial=0.0, where=np.isfinite(expected))))
        if got.shape != expected.shape or not np.allclose(got, expected, rtol=1e-4, atol=bound, equal_nan=True):
            where = f"{got.shape} for {expected.shape}: {got.ravel()[:4]} for {expected.ravel()[:4]}"
            finding.note("wrong", f"{shapes}: {where}, exported takes: {taken}")
            return
