"""Holds the kernels of quantized models to the int64 interpreter, and their meaning to that of the models' owner.

Vocabulary
    quantized region   one with an integer product in it, or one that gives stored integers (i8, i16).
    exact              all its ops are integer ops or single IEEE operations: then its definition has one value, and the
                       kernel must give these bits. A region with a sum of floats or an exp in it has none.
    LSB                a unit of the stored integers.

Every result of every region becomes an output. Walking the program once, each quantized region is interpreted on what
the kernels before it really gave it, so that an error is that of its own kernel. For an ONNX model it is interpreted
a second time, on ONNX Runtime's own values (optimizations off), and compared with its value of the QuantizeLinear that
the region ends in: an error is that of this region's arithmetic, not inherited.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowerkit.capture.locations import origin_of
from lowerkit.capture.program import Program
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.dialect.interpret import Interpreter
from lowerkit.dialect.ops import RegionOp
from lowerkit.mlir import func, ir, run_pipeline, walk
from lowerkit.parity.integer_row import IntegerRow
from lowerkit.parity.metrics import compare
from lowerkit.parity.taps import last_op, last_part
from lowerkit.runtimes.manifest import Signature, TensorSpec

Array = np.ndarray[Any, Any]

_INTEGER_PRODUCTS = ("lk.integer_matmul", "lk.integer_conv")
_EXACT = ("arith.", "tensor.", "linalg.generic", "linalg.yield", "linalg.fill", "linalg.transpose", "lk.yield")
_EXACT_OPS = frozenset({"math.roundeven", "math.floor", "math.ceil", "math.absf", *_INTEGER_PRODUCTS})


def holds_quantization(program: Program) -> bool:
    """Whether a fused program has quantized regions."""
    return any(_is_quantized(op) for op in _regions(program.main))


def check_integers(program: Program, inputs: Sequence[Array], options: CompileOptions) -> list[IntegerRow]:
    """Checks a fused program of static shapes, which is not changed; compiles a copy of it.

    Args:
        program: at stage ``fused``.
        inputs: in the order of its signature.
        options: how the kernels to be checked are compiled.
    """
    copy, results = _with_all_results(program)
    count = len(program.signature.outputs)
    compiled = compile_program(copy, options)
    given = compiled.session.run(*inputs)[count:]
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
        run_pipeline(module, "builtin.module(linalg-generalize-named-ops)")
    names = {name for _, _, name in results if name}
    return _Walk(program, module, given, _owner_values(program, inputs, names)).run(inputs)


def _owner_values(program: Program, inputs: Sequence[Array], nodes: set[str]) -> Mapping[str, Array]:
    if program.functional is not None:
        from lowerkit.parity.reference import node_values

        values = node_values(program.functional, inputs, nodes, float64=False)
        return {node: arrays[0] for node, arrays in values.items() if len(arrays) == 1}
    if program.onnx_model is None:
        return {}
    from lowerkit.parity.onnx_reference import onnx_node_values

    found = onnx_node_values(program, inputs, nodes)
    return {node: next(iter(values.values())) for node, values in found.items() if len(values) == 1}


def _regions(main: ir.Operation) -> list[ir.Operation]:
    block = main.regions[0].blocks[0]
    return [op.operation for op in block.operations if op.operation.name == "lk.region"]


def _with_all_results(program: Program) -> tuple[Program, list[tuple[int, int, str]]]:
    """Returns a copy whose further outputs are all results of all regions: (region, result, node) of each."""
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
    copy = replace(program, module=module)
    main = copy.main.opview
    assert isinstance(main, func.FuncOp)
    terminator = list(main.entry_block.operations)[-1].operation
    values, specs = list(terminator.operands), list(program.signature.outputs)
    found: list[tuple[int, int, str]] = []
    for number, region in enumerate(_regions(copy.main)):
        for place, result in enumerate(region.results):
            kind = ir.RankedTensorType(result.type)
            values.append(result)
            specs.append(TensorSpec(f"result.{number}.{place}", str(kind.element_type), [*kind.shape]))
            found.append((number, place, _node(region, place)))
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(values)
    terminator.erase()
    with program.context:
        kind = ir.FunctionType.get(main.type.inputs, [value.type for value in values])
        main.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
    old = program.signature
    copy.signature = Signature(old.inputs, specs, old.states, old.dims)
    return copy, found


def _node(region: ir.Operation, place: int) -> str:
    return origin_of(last_part(last_op(region, place).location)).node


def _stored(value: ir.Value) -> bool:
    return str(ir.RankedTensorType(value.type).element_type) in ("i8", "i16")


def _names(region: ir.Operation) -> set[str]:
    found: set[str] = set()
    walk(region, lambda op: found.add(op.name))
    return found - {region.name}


def _is_quantized(region: ir.Operation) -> bool:
    stored = any(_stored(result) for result in region.results)
    return stored or not _names(region).isdisjoint(_INTEGER_PRODUCTS)


def _is_exact(region: ir.Operation) -> bool:
    parallel = True

    def visit(op: ir.Operation) -> None:
        nonlocal parallel
        if op.name == "linalg.generic" and "reduction" in str(op.attributes["iterator_types"]):
            parallel = False

    walk(region, visit)
    return parallel and all(name.startswith(_EXACT) or name in _EXACT_OPS for name in _names(region))


class _Walk:
    """Runs the top level of a program on given results of its regions, and interprets the quantized ones."""

    def __init__(self, program: Program, module: ir.Module, given: Sequence[Array], owner: Mapping[str, Array]) -> None:
        self.program, self.module, self.owner = program, module, owner
        self.given = iter(given)
        states = {spec.name: program.weights.get(spec.name) for spec in program.signature.states}
        self.interpreter = Interpreter({}, program.weights.get, states)
        self.rows: list[IntegerRow] = []

    def run(self, inputs: Sequence[Array]) -> list[IntegerRow]:
        """Returns a row for each result of each region, in program order."""
        function = ir.SymbolTable(self.module.operation)["main"].operation
        block = function.regions[0].blocks[0]
        ours: dict[ir.Value, Any] = {}
        for argument, array in zip(block.arguments, inputs, strict=True):
            signless = array.view(array.dtype.name.removeprefix("u")) if array.dtype.kind == "u" else array
            ours[argument] = signless
        theirs = dict(ours)
        for view in list(block.operations)[:-1]:
            op = view.operation
            if op.name == "lk.region":
                self._region(op, ours, theirs)
                continue
            for values in (ours, theirs):
                for result, value in zip(op.results, self.interpreter.run_op(op, values, None), strict=True):
                    values[result] = value
        return self.rows

    def _region(self, region: ir.Operation, ours: dict[ir.Value, Any], theirs: dict[ir.Value, Any]) -> None:
        given = [next(self.given) for _ in region.results]
        ours.update(zip(region.results, given, strict=True))
        expected = self._interpret(region, ours)
        quantized = _is_quantized(region)
        meant = self._interpret(region, theirs) if quantized and self.owner else expected
        exact, kind = _is_exact(region), ir.StringAttr(region.attributes["kind"]).value
        for place, result in enumerate(region.results):
            source = origin_of(last_part(last_op(region, place).location))
            found = self._owner(source.node, meant[place])
            theirs[result] = meant[place] if found is None else found
            row = IntegerRow(source.node, kind, source.source_line or "", given[place].size, exact)
            if not exact and not _stored(result):
                self.rows.append(replace(row, sqnr_db=compare(given[place], expected[place]).sqnr_db))
                continue
            unsigned = _holds_unsigned(region)
            differing, largest = _difference(given[place], expected[place], unsigned)
            row = replace(row, differing=differing, largest=largest, roundings=_roundings(region))
            if quantized and found is not None:
                differing, largest = _difference(meant[place], found, unsigned)
                row = replace(row, owner_differing=differing, owner_largest=largest)
            self.rows.append(row)

    def _interpret(self, region: ir.Operation, values: dict[ir.Value, Any]) -> list[Array]:
        view = region.opview
        assert isinstance(view, RegionOp)
        arguments = [values[operand] for operand in region.operands]
        with np.errstate(all="ignore"):
            return [np.asarray(value) for value in self.interpreter.run_block(view.block, arguments, {})]

    def _owner(self, node: str, like: Array) -> Array | None:
        """Returns the owner's value of a node in our layout and with our bits; None where it has none."""
        value = self.owner.get(node)
        if value is None or value.size != like.size:
            return None
        if value.dtype.kind == "u":
            value = value.view(value.dtype.name.removeprefix("u"))
        if value.dtype != like.dtype:
            return None
        return _to_layout(value, like)


def _to_layout(value: Array, like: Array) -> Array:
    """Returns ``value`` permuted and reshaped to what ``like`` is nearest to: passes move views off the way."""
    if value.shape == like.shape and (value.ndim < 2 or np.array_equal(value, like)):
        return value
    orders = itertools.permutations(range(value.ndim)) if value.ndim <= 5 else [tuple(range(value.ndim))]
    candidates = (value.transpose(order).reshape(like.shape) for order in orders)
    wanted = like.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return min(candidates, key=lambda candidate: float(np.nansum(np.abs(candidate.astype(np.float64) - wanted))))


def _roundings(region: ir.Operation) -> int:
    """Returns how often the region rounds to stored integers, at least once."""
    count = 0

    def visit(op: ir.Operation) -> None:
        nonlocal count
        count += op.name == "arith.trunci" and str(op.results[0].type) in ("i8", "i16")

    walk(region, visit)
    return max(1, count)


def _holds_unsigned(region: ir.Operation) -> bool:
    """Whether the stored results are read as unsigned numbers: nothing in the region saturates below zero."""
    signed = False

    def visit(op: ir.Operation) -> None:
        nonlocal signed
        if op.name != "arith.constant" or str(op.results[0].type) not in ("f32", "f64", "i64"):
            return
        value: Any = op.attributes["value"]
        signed = signed or value.value in (-128, -127, -32768, -32767)

    walk(region, visit)
    return not signed


def _difference(left: Array, right: Array, unsigned: bool) -> tuple[int, int]:
    """Returns how many elements differ, and by how many LSB at most.

    Floats that came of stored integers lie on a grid; its step is their LSB.
    """
    if left.dtype.kind == "f":
        grid = np.unique(right[np.isfinite(right)].astype(np.float64))
        step = float(np.diff(grid).min(initial=np.inf))
        error = np.abs(left.astype(np.float64) - right.astype(np.float64))
        error[np.isnan(left) & np.isnan(right)] = 0
        differing = int(np.count_nonzero(~(error == 0)))
        return differing, int(np.nan_to_num(np.ceil(np.nanmax(error, initial=0) / step - 1e-3), posinf=1 << 30))
    if unsigned:
        left, right = (array.view(f"u{array.dtype.itemsize}") for array in (left, right))
    error = np.abs(left.astype(np.int64) - right.astype(np.int64))
    return int(np.count_nonzero(error)), int(error.max(initial=0))
