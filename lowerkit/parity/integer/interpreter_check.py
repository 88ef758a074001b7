"""Holds the code of quantized models to the int64 interpreter: regions of the host, functions of accelerators.

Vocabulary
    unit               an ``lk.region``, or an ``lk.call`` of a function of an accelerator.
    exact              all its ops are integer ops or single IEEE operations: then its definition has one value, and the
                       kernel must give these bits. A region with a sum of floats or an exp in it has none.
    LSB                a unit of the stored integers.

Every result of every unit becomes an output. Walking the program once, each unit is interpreted on what the code
before it really gave it, so that an error is its own. Units of floats are held to the interpreter by
their SQNR. Whether the interpreter means what the model's owner means is the part of :mod:`source_framework_check`.

The ranks of a mesh are walked side by side, each on its parts of the weights and on what its own units gave; what they
compute together is interpreted on what all of them gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.dialect.interpreter.interpreter import Combine, Interpreter, executable_copy
from lowerkit.dialect.interpreter.mesh import on_all_ranks
from lowerkit.dialect.types import signless
from lowerkit.mlir import func, ir, walk
from lowerkit.parity.integer.rows import IntegerRow, difference
from lowerkit.parity.metrics import compare
from lowerkit.parity.taps import last_op
from lowerkit.program.locations import last_part, origin_of
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature, TensorSpec
from lowerkit.runtimes.mesh.places import place_of, rank_with_place
from lowerkit.runtimes.mesh.state_parts import own_slices
from lowerkit.spmd.simulated_session import SimulatedSession

Array = np.ndarray[Any, Any]

_INTEGER_PRODUCTS = ("lk.integer_matmul", "lk.integer_conv")
_EXACT = ("arith.", "tensor.", "linalg.generic", "linalg.yield", "linalg.fill", "linalg.transpose", "lk.yield")
_EXACT_OPS = frozenset({"math.roundeven", "math.floor", "math.ceil", "math.absf", "lk.gather", *_INTEGER_PRODUCTS})
_NO_COMPUTATION = frozenset({"lk.region", "lk.call", "lk.weight", "func.func", "func.return", "builtin.module"})
_COLLECTIVES = frozenset({"lk.collective_start", "lk.collective_done"})
_ROUNDING = ("lk.quantize", "lk.requant")
_LOWEST = (-128, -127, -32768, -32767)


def check_integers(program: Program, inputs: Sequence[Array], options: CompileOptions) -> list[IntegerRow]:
    """Checks a fused program of static shapes, which is not changed; compiles a copy of it.

    Args:
        program: at stage ``fused``.
        inputs: in the order of its signature.
        options: how the kernels to be checked are compiled.

    Returns:
        A row for each result of each unit, in program order; on a mesh that of the rank with the largest error, which
        the row of a failure names.
    """
    count = len(program.signature.outputs)
    runner = compile_program(_with_all_results(program), options).runner
    given = runner.run_ranks(*inputs) if isinstance(runner, SimulatedSession) else [runner.run(*inputs)]
    module, functions = executable_copy(program.module)

    def walk_rank(rank: int, combine: Combine | None) -> list[IntegerRow]:
        place = place_of(program.mesh, rank)
        states = {spec.name: _own_state(program, spec, place) for spec in program.signature.states}
        interpreter = Interpreter(functions, lambda name: _part(program.weights, name, place), states, combine)
        with module.context:
            return _Walk(interpreter, given[rank][count:]).run(inputs)

    if not program.mesh:
        return walk_rank(0, None)
    by_rank = on_all_ranks({axis.name: axis.size for axis in program.mesh}, walk_rank)
    names = [rank_with_place(program.mesh, rank) for rank in range(len(by_rank))]
    return [_worst(rows, names) for rows in zip(*by_rank, strict=True)]


def computes_exactly(program: Program) -> bool:
    """Whether all that a fused program computes has one value: integer ops and single IEEE operations alone.

    Collectives are not looked at: a sum of floats over ranks is none of these.
    """
    return _is_exact(program.module.operation)


def _part(weights: WeightStore, name: str, place: Mapping[str, int]) -> Array:
    """Returns what the rank at ``place`` has of a weight."""
    shard = weights.shard(name)
    return weights.get(name) if shard is None else shard.part(weights.get(name), place)


def _own_state(program: Program, spec: TensorSpec, place: Mapping[str, int]) -> Array:
    """Returns what a state of the rank at ``place`` starts from."""
    own = [extent for extent in spec.shape if isinstance(extent, int)]
    return program.weights.get(spec.name)[
        own_slices(own, program.state_cuts.get(spec.name, []), program.mesh, place)
    ].copy()


def _worst(rows: Sequence[IntegerRow], ranks: Sequence[str]) -> IntegerRow:
    """Returns the row of the rank with the largest error; a failing one has the rank in its name."""

    def badness(rank: int) -> tuple[bool, int, int, float]:
        row = rows[rank]
        return not row.passed, row.largest, row.differing, -(math.inf if row.sqnr_db is None else row.sqnr_db)

    worst = max(range(len(rows)), key=badness)
    row = rows[worst]
    return row if row.passed else replace(row, name=f"{row.name} ({ranks[worst]})")


def _is_unit(op: ir.Operation) -> bool:
    return op.name in ("lk.region", "lk.call")


def _units(main: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in main.regions[0].blocks[0].operations if _is_unit(op.operation)]


def _with_all_results(program: Program) -> Program:
    """Returns a copy whose further outputs are all results of all units, in order."""
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
    copy = replace(program, module=module, certificate=None)  # which speaks of the program without these outputs
    main = copy.main.opview
    assert isinstance(main, func.FuncOp)
    terminator = list(main.entry_block.operations)[-1].operation
    values, specs = list(terminator.operands), list(program.signature.outputs)
    for unit in _units(copy.main):
        for result in unit.results:
            kind = ir.RankedTensorType(result.type)
            specs.append(TensorSpec(f"result.{len(values)}", str(kind.element_type), [*kind.shape]))
            values.append(result)
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(values)
    terminator.erase()
    with program.context:
        kind = ir.FunctionType.get(main.type.inputs, [value.type for value in values])
        main.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
    old = program.signature
    copy.signature = Signature(old.inputs, specs, old.states, old.dims, old.guards)
    return copy


def _stored(value: ir.Value) -> bool:
    return str(ir.RankedTensorType(value.type).element_type) in ("i8", "i16")


def _names(body: ir.Operation) -> set[str]:
    found: set[str] = set()
    walk(body, lambda op: found.add(op.name))
    return found - _NO_COMPUTATION - _COLLECTIVES


def _is_exact(body: ir.Operation) -> bool:
    parallel = True

    def visit(op: ir.Operation) -> None:
        nonlocal parallel
        if op.name == "linalg.generic" and "reduction" in str(op.attributes["iterator_types"]):
            parallel = False

    walk(body, visit)
    return parallel and all(name.startswith(_EXACT) or name in _EXACT_OPS for name in _names(body))


class _Walk:
    """Runs the top level of a program on given results of its units, and interprets each of these."""

    def __init__(self, interpreter: Interpreter, given: Sequence[Array]) -> None:
        self.given = iter(given)
        self.interpreter = interpreter
        self.rows: list[IntegerRow] = []

    def run(self, inputs: Sequence[Array]) -> list[IntegerRow]:
        """Walks ``@main``; its named linalg ops have been generalized."""
        block = self.interpreter.functions["main"].regions[0].blocks[0]
        values: dict[ir.Value, Any] = {
            argument: signless(array) for argument, array in zip(block.arguments, inputs, strict=True)
        }
        for view in list(block.operations)[:-1]:
            op = view.operation
            if _is_unit(op):
                self._unit(op, values)
            else:
                values.update(zip(op.results, self.interpreter.run_op(op, values, None), strict=True))
        return self.rows

    def _unit(self, unit: ir.Operation, values: dict[ir.Value, Any]) -> None:
        with np.errstate(all="ignore"):
            expected = [np.asarray(value) for value in self.interpreter.run_op(unit, values, None)]
        given = [next(self.given) for _ in unit.results]
        values.update(zip(unit.results, given, strict=True))
        kind = ir.StringAttr(unit.attributes["kind" if unit.name == "lk.region" else "callee"]).value
        body = unit if unit.name == "lk.region" else self.interpreter.functions[kind]
        exact, unsigned, roundings = _is_exact(body), _holds_unsigned(body), _roundings(body)
        for place, result in enumerate(unit.results):
            source = origin_of(last_part(last_op(body, place).location))
            row = IntegerRow(source.node, kind, source.source_line or "", given[place].size, exact)
            if not exact and not _stored(result):
                floats = replace(row, sqnr_db=compare(given[place], expected[place]).sqnr_db)
                if floats.passed or not roundings:
                    self.rows.append(floats)
                    continue
                # Rounded to integers and back: the floats lie on a grid, and one tie costs more than 100 dB allow.
            row = replace(row, roundings=max(1, roundings))
            differing, largest = difference(given[place], expected[place], unsigned)
            self.rows.append(replace(row, differing=differing, largest=largest))


def _roundings(body: ir.Operation) -> int:
    """Returns how often a unit rounds to stored integers."""
    count = 0

    def visit(op: ir.Operation) -> None:
        nonlocal count
        narrowed = op.name == "arith.trunci" and str(op.results[0].type) in ("i8", "i16")
        count += narrowed or op.name in _ROUNDING

    walk(body, visit)
    return count


def _holds_unsigned(body: ir.Operation) -> bool:
    """Whether the stored results are read as unsigned numbers: nothing in the unit saturates below zero."""
    signed = False

    def visit(op: ir.Operation) -> None:
        nonlocal signed
        if op.name == "arith.constant" and str(op.results[0].type) in ("f32", "f64", "i64"):
            value: Any = op.attributes["value"]
            signed = signed or value.value in _LOWEST
        if op.name in _ROUNDING:
            signed = signed or ir.IntegerAttr(op.attributes["minimum"]).value in _LOWEST

    walk(body, visit)
    return not signed
