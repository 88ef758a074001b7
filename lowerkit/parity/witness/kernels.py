"""The witness of kernels: each distinct region of a fused program alone, compiled, beside the numpy interpreter.

It sees what fusion, layouts and kernels do to what the ops say. A region is compiled as the model's own is, from the
same text, so that the cache of kernels has it; its operands are drawn, and special values.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial

import msgspec
import numpy as np
from torch import Tensor

from lowerkit.compiled import CompileOptions
from lowerkit.compiler import compile_program
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import LowerkitError
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import main_block
from lowerkit.parity.bisect.prefixes import region_piece
from lowerkit.parity.bisect.units import Unit, units_of
from lowerkit.parity.judge.operators import PARTIAL_SUMS, difference
from lowerkit.parity.special_values import special_inputs, special_inputs_together
from lowerkit.parity.witness.verdicts import Difference, VerdictCache, Witnessed
from lowerkit.passes.rewriting import operations
from lowerkit.passes.source_location import describe
from lowerkit.program.dtypes import NUMPY_DTYPES, to_torch
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import HOST
from lowerkit.runtimes.session import Session

_LOOK_UPS = ("lk.gather", "lk.scatter", "lk.check_indices", "tensor.extract")
"""Ops that read integers as places: special integers would stand outside."""

_DRAWN = 1 << 18
"""Numbers that are drawn for an operand; a larger one has them again."""

_SMALL = 1 << 14
"""Elements of all operands: of a larger region each run costs, and special values stand together in a few."""


def witness_kernels(
    program: Program,
    options: CompileOptions,
    cache: VerdictCache | None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Witnessed]:
    """Returns a verdict for each distinct region of the host, and one for all that each accelerator runs.

    Args:
        program: at stage ``fused``; it is not changed.
        options: what the model is compiled with.
        cache: where verdicts are looked up and kept; None: everything is run.
        on_progress: called with the kind of the region that runs.
    """
    found: dict[str, Witnessed] = {}
    for unit in units_of(operations(main_block(program.module))):
        if unit.target != HOST:
            reason = f"it runs on {unit.target}, whose code has no witness here"
            found.setdefault(unit.target, Witnessed(unit.target, "", "left out", reason=reason, places=[]))
            found[unit.target].places.append(str(describe(unit.last)))
            continue
        stored = [_is_weight(value) for value in unit.op.operands]
        key = _key(unit, stored, options)
        if key not in found:
            verdict = cache.find(key) if cache is not None else None
            if verdict is None:
                if on_progress is not None:
                    on_progress(f"witness of a kernel, {unit.op.attributes['kind']}")
                verdict = _witness(unit, stored, options)
                if cache is not None:
                    cache.keep(key, verdict)
            found[key] = msgspec.structs.replace(verdict, places=[])
        found[key].places.append(str(describe(unit.last)))
    return list(found.values())


def _is_weight(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "lk.weight"


def _key(unit: Unit, stored: Sequence[bool], options: CompileOptions) -> str:
    """The region's text, with values numbered by where they come up first: equal regions have equal texts."""
    numbers: dict[str, str] = {}
    text = unit.op.get_asm(enable_debug_info=False, assume_verified=True)
    text = re.sub(r"%[\w$.-]+", lambda name: numbers.setdefault(name.group(), f"%{len(numbers)}"), text)
    return f"{options.spec}\n{list(stored)}\n{text}"


def _witness(unit: Unit, stored: Sequence[bool], options: CompileOptions) -> Witnessed:
    kind = ir.StringAttr(unit.op.attributes["kind"]).value
    types = [ir.RankedTensorType(value.type) for value in unit.op.operands]
    text = ", ".join(f"{each.element_type}[{','.join(map(_extent, each.shape))}]" for each in types)
    if any(extent < 0 for each in unit.types for extent in each.shape):
        return Witnessed(kind, text, "left out", reason="its extents are open")
    names = [op.operation.name for op in unit.block.operations]
    places = any(name in _LOOK_UPS for name in names)
    operands = _drawn(types, places=places)
    piece = region_piece(unit.op, operands, stored)
    compiled = compile_program(piece.program, CompileOptions(options.target, golden=False, use_cache=options.use_cache))
    session = compiled.session
    cases = [("drawn values", piece.inputs)]
    if any(array.size for array in piece.inputs):
        together = sum(array.size for array in operands) > _SMALL
        special = (special_inputs_together if together else special_inputs)(piece.program.signature, piece.inputs)
        cases += [(case.name, case.inputs) for case in special if not (places and "nteger" in case.name)]
    counts: Counter[str] = Counter()
    differences: dict[str, Difference] = {}
    for number, (name, inputs) in enumerate(cases):
        given = iter(inputs)
        whole = [array if is_stored else next(given) for array, is_stored in zip(operands, stored, strict=True)]
        difference = _difference(unit, session, kind, inputs, whole, ties=number > 0)
        if difference is None:
            continue
        sort = "special" if number else "values"
        counts[sort] += 1
        if difference:
            differences.setdefault(sort, Difference(name, difference))
    verdict = "differs" if differences else "same"
    return Witnessed(kind, text, verdict, dict(counts), list(differences.values()))


def _extent(extent: int) -> str:
    return "?" if extent < 0 else str(extent)


def _difference(
    unit: Unit, session: Session, kind: str, inputs: Sequence[Array], whole: Sequence[Array], *, ties: bool
) -> str | None:
    """Returns what differs, empty where nothing does; None where the interpreter refuses the values."""
    try:
        expected = unit.run(whole, float64=False)
    except LowerkitError:
        return None
    ours = session.run(*inputs)
    tensors = [to_torch(np.array(array)) for array in whole]
    exact = cache(lambda: unit.run(whole, float64=True))

    def wide(place: int) -> Tensor | None:
        precise = exact()[place]
        return to_torch(np.array(precise)) if precise.dtype == np.float64 else None

    for place, (value, own) in enumerate(zip(ours, expected, strict=True)):
        if value.shape != own.shape:
            return f"shape {value.shape}, the interpreter's {own.shape}"
        reference = to_torch(np.array(own.astype(value.dtype)))
        found = to_torch(np.array(value))
        precisely = partial(wide, place)
        wrong = difference(kind, tensors, found, reference, precisely, ties=ties, spread=PARTIAL_SUMS)
        if wrong:
            return wrong
    return ""


def _drawn(types: Sequence[ir.RankedTensorType], *, places: bool) -> list[Array]:
    generator = np.random.default_rng(0)
    least = min([extent for each in types for extent in each.shape], default=1)
    found: list[Array] = []
    for each in types:
        shape, dtype = tuple(each.shape), np.dtype(NUMPY_DTYPES[str(each.element_type)])
        if dtype == np.bool_:
            found.append(generator.random(shape) < 0.5)
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = (0, least) if places else (max(info.min, -100), min(info.max, 100))
            found.append(generator.integers(low, max(low + 1, high), shape).astype(dtype))
        else:
            size = math.prod(shape)
            found.append(np.resize(generator.standard_normal(min(size, _DRAWN)).astype(dtype), shape))
    return found
