"""Compares the ops inside branches and loop bodies with eager's: each body is run by itself, on eager's own values.

Vocabulary
    body   a function that ``lk.cond`` or ``lk.while`` calls: ``main.cond.then``, ``main.while_loop.body``.
    turn   one call of a body, counted from 0.

Steps
    1. the captured module is run by PyTorch, op by op, in the model's own element types and in float64; what each body
       is given and gives is kept, for the first :data:`MOST_TURNS` turns;
    2. each body is compiled as a model of its own, with a tap at every region, and run on what it was given;
    3. the first turn whose results do not hold gate A, else the first of all, is compared tap by tap.

A body starts from eager's values, so what fails there is wrong by itself, not by what was computed before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import Evaluation, evaluate, flat_values
from lowerkit.parity.bisect.torch_ops import MixedInterpreter
from lowerkit.parity.compare.taps import Reference, compare_taps
from lowerkit.parity.gates import GATES, judge_op
from lowerkit.parity.permission import Permitted, interpreted_runs, permitted_of
from lowerkit.parity.report.report import Report, Row
from lowerkit.parity.taps import add_taps
from lowerkit.passes.function_by_function import target_of
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import Signature, TensorSpec

if TYPE_CHECKING:
    from lowerkit.compiler import CompileOptions
    from lowerkit.parity.compare.outputs import OutputJudge

Array = np.ndarray[Any, Any]

MOST_TURNS = 64


@dataclass(frozen=True)
class Turn:
    """What a body was given and gave in one call."""

    number: int
    inputs: list[Array]
    results: list[Array]


Turns = dict[str, list[Turn]]


class _Recorder(MixedInterpreter):
    """Keeps what bodies are given and give; with ``wanted``, also the values of the ops of one turn."""

    def __init__(self, turns: Turns, wanted: tuple[str, int] | None, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.turns = turns
        self.wanted = wanted
        self.counts: dict[str, int] = {}

    def call(self, function: ir.Operation, inputs: Sequence[Any]) -> list[Any]:
        """Runs a body at any stage; torch tensors of bytes have a sign of their own there."""
        name = ir.StringAttr(function.attributes["sym_name"]).value
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        block = function.regions[0].blocks[0]
        given = [_signed_as(np.asarray(value), kind.type) for value, kind in zip(inputs, block.arguments, strict=True)]
        outer, self.keep = self.keep, (name, number) == self.wanted
        found = [_signless(np.asarray(value)) for value in self.run_block(block, given, {})]
        self.keep = outer
        if number < MOST_TURNS:
            kept = [np.array(value) for value in inputs]
            self.turns.setdefault(name, []).append(Turn(number, kept, [np.array(value) for value in found]))
        return found


def _as_taken(values: Sequence[Array], specs: Sequence[TensorSpec]) -> list[Array]:
    """Returns values as the body takes them: scripts carry truth values as whole numbers."""
    return [value.astype(np.bool_) if spec.dtype == "i1" else value for value, spec in zip(values, specs, strict=True)]


def _signed_as(value: Array, kind: ir.Type) -> Array:
    return value.view(np.uint8) if str(kind).endswith(",ui8>") else value


def _signless(value: Array) -> Array:
    return value.view(np.int8) if value.dtype == np.uint8 else value


def bodies_of(program: Program) -> list[str]:
    """Returns the names of the functions that control flow calls, in the order of the module."""
    functions = [op.operation for op in program.module.body.operations if not target_of(op.operation)]
    names = [ir.StringAttr(function.attributes["sym_name"]).value for function in functions]
    return [name for name in names if name != "main"]


def compare_bodies(
    captured: Program, fused: Program, judge: OutputJudge, options: CompileOptions, report: Report
) -> None:
    """Adds a row for each op inside of bodies to ``report``, before the rows of ``@main``.

    Args:
        captured: the program as it was captured.
        fused: the same at stage fused, without taps; it is not changed.
        judge: of the outputs. The captured module's own have to hold gate A, else its float64 values excuse nothing.
        options: how to compile.
        report: gets the rows, and a line for each body that these inputs do not reach.
    """
    own: Turns = {}
    wide: Turns = {}
    inputs = judge.inputs
    outputs = evaluate(captured, inputs, float64=False, make=partial(_Recorder, own, None)).outputs
    specs = captured.signature.outputs
    trusted = all(
        judge.judge_exactly(place, spec.dtype, value).passed
        for place, (spec, value) in enumerate(zip(specs, outputs, strict=False))
        if spec.dtype in GATES
    )
    if trusted:
        evaluate(captured, inputs, float64=True, make=partial(_Recorder, wide, None))
    else:
        report.skipped.append("the float64 values of ops inside of bodies: the captured module is not the model")
    rows: list[Row] = []
    for name in bodies_of(fused):
        label = name.removeprefix("main.")
        if name not in own:
            report.skipped.append(f"the body {label}: these inputs do not reach it")
            continue
        body = _as_program(fused, name)
        if body is None:
            report.skipped.append(f"the body {label}: its shapes are symbolic")
            continue
        rows += _compare(captured, inputs, body, name, own[name], wide.get(name, []), options, report)
    report.ops[:0] = rows


def _compare(
    captured: Program,
    inputs: Sequence[Array],
    body: Program,
    name: str,
    turns: Sequence[Turn],
    wide: Sequence[Turn],
    options: CompileOptions,
    report: Report,
) -> list[Row]:
    from lowerkit.compiler import compile_program

    specs = list(body.signature.outputs)
    allowed = options.allow
    plain = body.copy()
    taps, left_out = add_taps(body)
    session = compile_program(body, options).session
    taken = body.signature.inputs
    chosen, ours, passed = turns[0], session.run(*_as_taken(turns[0].inputs, taken)), set[int]()
    for turn in turns:
        found = ours if turn is turns[0] else session.run(*_as_taken(turn.inputs, taken))
        # A loop may take another course in float64: a turn has a partner only where it was given the same shapes.
        exact = wide[turn.number].results if turn.number < len(wide) else [None] * len(turn.results)
        granted = _granted(plain, _as_taken(turn.inputs, taken), allowed).outputs if allowed else [None] * len(specs)
        held = {
            place
            for place, (spec, actual, eager, best) in enumerate(zip(specs, found, turn.results, exact, strict=False))
            if judge_op(spec.dtype, actual, eager, best, None, granted[place]).passed
        }
        if turn is turns[0] or len(held) < len(specs):
            chosen, ours, passed = turn, found, held
        if len(held) < len(specs):
            break
    references = _references(captured, inputs, name, chosen.number, exact=bool(wide))
    part = Report(report.source, [], [])

    def permit(nodes: Collection[str]) -> dict[str, list[Permitted | None]]:
        moved = _granted(plain, _as_taken(chosen.inputs, taken), allowed).nodes if allowed else {}
        return {node: [moved.get(node)] * len(references[node]) for node in nodes}

    compare_taps(body.signature.outputs, taps, ours, references, passed, part, permit=permit)
    label = name.removeprefix("main.") + (f", turn {chosen.number}" if len(turns) > 1 else "")
    report.skipped += [f"{line} (in {label})" for line in (*part.skipped, *left_out)]
    return [replace(row, name=f"{row.name} (in {label})") for row in part.ops]


@dataclass(frozen=True)
class _Granted:
    """How far what is allowed moves the outputs of a body, and the nodes in it."""

    outputs: list[Permitted | None]
    nodes: Mapping[str, Permitted | None]


def _granted(body: Program, inputs: Sequence[Array], allowed: Collection[str]) -> _Granted:
    """Interprets a body at stage fused on the inputs of one turn, with what is allowed and without."""

    def run() -> Evaluation:
        return evaluate(body, inputs, float64=False, keep=True)

    own, runs = run(), interpreted_runs(allowed, run)
    names = sorted(allowed)
    outputs = [permitted_of(names, value, [one.outputs[n] for one in runs]) for n, value in enumerate(own.outputs)]
    moved = [flat_values(one.values) for one in runs]
    nodes = {
        node: permitted_of(names, np.concatenate(_flat(tensors)), [np.concatenate(_flat(one[node])) for one in moved])
        for node, tensors in flat_values(own.values).items()
    }
    return _Granted(outputs, nodes)


def _flat(tensors: Sequence[Array]) -> list[Array]:
    return [np.asarray(tensor).astype(np.float64).ravel() for tensor in tensors]


def _references(
    captured: Program, inputs: Sequence[Array], name: str, turn: int, *, exact: bool
) -> Mapping[str, list[Reference]]:
    """Returns eager's values of the nodes of one turn, with ``exact`` each with its value in float64."""
    values = [
        flat_values(evaluate(captured, inputs, float64=float64, make=partial(_Recorder, {}, (name, turn))).values)
        for float64 in ((False, True) if exact else (False,))
    ]
    found: dict[str, list[Reference]] = {}
    for node, tensors in values[0].items():
        partners = values[-1].get(node, []) if exact else []
        wide = partners if len(partners) == len(tensors) else [None] * len(tensors)
        found[node] = [Reference(*pair) for pair in zip(tensors, wide, strict=True)]
    return found


def _as_program(program: Program, name: str) -> Program | None:
    """Returns a program whose ``@main`` is a body; None where its shapes are symbolic."""
    apart = program.copy()
    symbols = ir.SymbolTable(apart.module.operation)
    symbols["main"].operation.erase()
    body = symbols[name].operation
    body.attributes["sym_name"] = ir.StringAttr.get("main", program.context)
    kind = ir.FunctionType(ir.TypeAttr(body.attributes["function_type"]).value)
    types = [[ir.RankedTensorType(each) for each in side] for side in (kind.inputs, kind.results)]
    if not all(each.has_static_shape for side in types for each in side):
        return None
    taken, given = (
        [TensorSpec(f"{prefix}{number}", str(each.element_type), list(each.shape)) for number, each in enumerate(side)]
        for prefix, side in zip("xy", types, strict=True)
    )
    return replace(
        apart,
        signature=Signature(taken, given),
        output_tree=None,
        input_tree=None,
        eager=None,
        functional=None,
        exported=None,
        onnx_model=None,
        example_inputs=None,
    )
