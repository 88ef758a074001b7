"""Captured against eager: whether torch's export computes what the module computes, apart from all that lowerkit does.

Steps
    export   torch's exported graph, as it was exported, is run by torch and compared with the module (or script).
    capture  where the graph that was imported is not the reference's, it is compared with the export, in float64.

A module may compute one thing in eager and another under export (``torch.compiler.is_exporting()``, a decomposition, a
fake implementation that is wrong): a compiled model that is true to such an export is still wrong for its user.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lowerkit.capture.torch_export.states import states_kept
from lowerkit.parity.bisect.graph import (
    decomposition_finding,
    exported_values,
    first_unsound,
    graph_values,
    origin_of_node,
)
from lowerkit.parity.gates import GATES, Verdict
from lowerkit.parity.metrics import compare
from lowerkit.parity.references.float64_reference import EXACT_DB
from lowerkit.parity.references.higher_order import run_higher_order
from lowerkit.parity.references.torch_nodes import node_values, output_nodes
from lowerkit.parity.report.report import Report, Row
from lowerkit.program.dtypes import name_of, to_numpy
from lowerkit.program.functional_program import FunctionalProgram

if TYPE_CHECKING:
    from lowerkit.parity.compare.outputs import OutputJudge
    from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]


def compare_export(program: Program, judge: OutputJudge, report: Report, inputs: str = "") -> None:
    """Adds a row for each output of the export to ``report.captures``; none where there is no module behind it."""
    if program.exported is None or program.eager_module is None:
        return
    try:
        values = exported_outputs(program, judge.inputs)
    except Exception as error:  # what PyTorch raises for a graph that it cannot run node by node
        report.skipped.append(f"the export against eager: {type(error).__name__}: {error}")
        return
    specs = program.signature.outputs[: len(judge.eager) - len(program.signature.states)]
    if len(values) != len(specs):
        report.skipped.append(f"the export against eager: it has {len(values)} outputs, the model {len(specs)}")
        return
    rows = [
        Row(spec.name, "export", "", spec.dtype, value.shape, _verdict(judge, place, spec.dtype, value), inputs)
        for place, (spec, value) in enumerate(zip(specs, values, strict=True))
    ]
    if not all(row.verdict.passed for row in rows):
        rows = [row if row.verdict.passed else _placed(program, judge.inputs, row) for row in rows]
    report.captures += rows


def _verdict(judge: OutputJudge, place: int, dtype: str, value: Array) -> Verdict:
    if value.shape == judge.eager[place].shape:
        return judge.judge_exactly(place, dtype, value)
    shapes = " and ".join("x".join(map(str, array.shape)) for array in (value, judge.eager[place]))
    return Verdict(False, f"shapes differ: {shapes}", compare(np.zeros(1), np.ones(1)), None, None)


def exported_outputs(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Returns the outputs of the exported graph, as it was exported, run by torch in its own element types.

    Its buffers, and with them the user's, are left as they are.
    """
    graph = _unshared(program)
    names = output_nodes(graph)[: len(program.signature.outputs)]
    with states_kept(program.eager):  # a state may be known under a further name
        values = node_values(graph, inputs, names, float64=False)
    return [np.array(values[name][0]) for name in names]


def _unshared(program: Program) -> FunctionalProgram:
    """The exported graph with copies of the states: it changes them in place."""
    assert program.exported is not None, "the caller checked"
    graph = FunctionalProgram.of(program.exported)
    states = {spec.name for spec in program.signature.states}

    def copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(value.detach()) if name in states else value for name, value in tensors.items()}

    return replace(graph, state_dict=copied(graph.state_dict), constants=copied(graph.constants))


def _placed(program: Program, inputs: Sequence[Array], row: Row) -> Row:
    """Returns the row with the first node of the export whose value eager never computes, and the user's line."""
    graph = _unshared(program)
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    with states_kept(program.eager):
        values = node_values(graph, inputs, [node.name for node in nodes], float64=False, copies=True)
    eager = _Seen()
    assert program.eager is not None, "the caller checked"
    with eager:
        program.eager(*inputs)
    agreed = {name: all(eager.holds(value) for value in tensors) for name, tensors in values.items()}
    node = first_unsound(graph.graph, agreed)
    if node is None:
        return row
    origin = origin_of_node(node)
    return replace(row, name=f"{node.name}@{origin.module}", location=origin.source_line or "")


class _Seen(TorchDispatchMode):
    """Keeps what every op of a run gives."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, list[Array]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one op."""
        if isinstance(func, HigherOrderOperator):
            return run_higher_order(self, func, args, kwargs)
        result = func(*args, **(kwargs or {}))
        for leaf in [*tree_leaves(result), *tree_leaves((args, kwargs))]:
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_quantized:
                self.values.setdefault(leaf.numel(), []).append(np.array(to_numpy(leaf)).ravel())
        return result

    def holds(self, value: Array) -> bool:
        """Whether a value is one of these, in whatever shape: within ten times the noise that gate A grants a model."""
        flat = value.ravel()
        dtype = name_of(value.dtype)
        limit = 0.8 * GATES[dtype].model_sqnr_db if dtype in GATES else np.inf
        for other in self.values.get(value.size, ()):
            if other.dtype != flat.dtype:
                continue
            distance = compare(flat, other)
            if distance.special_equal and distance.sqnr_db >= limit:
                return True
        return value.size == 0


def compare_capture(program: Program, judge: OutputJudge, why: str, report: Report, inputs: str = "") -> None:
    """Adds a row that names the node in which the imported graph is not the export, where there is one.

    Args:
        program: the program. judge: the run.
        why: what showed that the graph is not the model.
        report: gets the row, and a line that the graph's values excuse nothing.
        inputs: which inputs these are.
    """
    report.skipped.append(f"the float64 values of ops: {why}")
    if program.exported is None or program.functional is None:
        return
    found = decomposition_finding(
        program, exported_values(program, judge.inputs), graph_values(program, judge.inputs), EXACT_DB
    )
    if found is None:
        return
    distance = found.distance or compare(np.zeros(1), np.ones(1))
    verdict = Verdict(False, f"{found.op} became another computation: {found.cause}", distance, None, None)
    report.captures.append(Row(found.node, "capture", found.location, "f64", found.shape, verdict, inputs))
