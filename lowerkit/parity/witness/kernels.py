"""The witness of kernels: each distinct region of a fused program alone, compiled, beside the numpy interpreter.

It sees what fusion, layouts and kernels do to what the ops say. A region is compiled as the model's own is, from the
same text, so that the cache of kernels has it; its operands are drawn, and special values. One with open extents is run
at several small ones (:mod:`open_regions`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import msgspec
import numpy as np
from torch import Tensor

from lowerkit.compiled import CompileOptions
from lowerkit.compiler import compile_program
from lowerkit.dialect.interpreter.interpreter import executable_copy
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import LowerkitError, RuntimeFault, UnsupportedError
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import main_block
from lowerkit.parity.bisect.prefixes import Piece, region_piece
from lowerkit.parity.bisect.units import Unit, units_of
from lowerkit.parity.judge.operators import PARTIAL_SUMS, difference
from lowerkit.parity.special_values import special_inputs, special_inputs_together
from lowerkit.parity.symbolic_sizes import text_of
from lowerkit.parity.witness.open_regions import OpenExtents, OpenRegions
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
    programs: Sequence[Program],
    options: CompileOptions,
    cache: VerdictCache | None,
    on_progress: Callable[[str], None] | None = None,
) -> list[Witnessed]:
    """Returns a verdict for each distinct region, of the host and of accelerators, and for each function that one of
    these compiles as a whole.

    Args:
        programs: at stage ``fused``, one, or one for each stage of a pipeline; they are not changed. A program that all
            ranks of an axis run has the regions of each.
        options: what the model is compiled with.
        cache: where verdicts are looked up and kept; None: everything is run.
        on_progress: called with the kind of the region that runs.
    """
    found: dict[str, Witnessed] = {}
    for unit, own, regions in _units(programs):
        stored = _stored(unit)
        extents, reason = _open_extents(unit, regions)
        if unit.target != HOST and options.spec.allow:
            reason = f"{unit.target} may compute less exactly: {', '.join(sorted(options.spec.allow))}"
        key = _key(unit, stored, options) + (extents.text if extents is not None else reason)
        if key not in found:
            verdict = cache.find(key) if cache is not None else None
            if verdict is None:
                alone = _Alone(unit, own, stored, extents)
                if on_progress is not None:
                    on_progress(f"witness of a kernel, {alone.named[0]}")
                verdict = _verdict(alone, reason, options)
                if cache is not None and verdict.verdict == "same":  # a device may be there another time
                    cache.keep(key, verdict)
            found[key] = msgspec.structs.replace(verdict, places=[])
        found[key].places.append(str(describe(unit.last)))
    return list(found.values())


def _units(programs: Sequence[Program]) -> Iterator[tuple[Unit, Unit, OpenRegions]]:
    """Yields each region, the same one as the interpreter runs it, and those of its program."""
    for program in programs:
        regions = OpenRegions(program)
        executable, _ = executable_copy(program.module)  # the same regions in the same order
        interpreted = units_of(operations(main_block(executable)))
        for unit, own in zip(units_of(operations(main_block(program.module))), interpreted, strict=True):
            yield unit, own, regions


def _open_extents(unit: Unit, regions: OpenRegions) -> tuple[OpenExtents | None, str]:
    """Returns the extents of a region where some are open, and why it cannot be run."""
    if all(extent >= 0 for each in unit.types for extent in each.shape):
        return None, ""
    if unit.target != HOST:
        return None, f"its extents are open, and it runs on {unit.target}"
    try:
        extents = regions.extents(unit)
    except LowerkitError as error:
        return None, error.message
    return extents, "" if extents.sizes else "no small extents that were tried fulfil the model's guards"


def _stored(unit: Unit) -> list[bool]:
    """Whether each operand is stored with the code, and so may be packed."""
    if unit.view is not None:
        return [operand.is_weight for operand in unit.view.operands]
    return [_is_weight(unit.outer.get(value, value)) for value in unit.op.operands]


def _is_weight(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "lk.weight"


def _key(unit: Unit, stored: Sequence[bool], options: CompileOptions) -> str:
    """The region's text, with values numbered by where they come up first: equal regions have equal texts."""
    numbers: dict[str, str] = {}
    ops = [unit.op] if unit.view is None else [op.operation for op in unit.block.operations]
    text = "\n".join(op.get_asm(enable_debug_info=False, assume_verified=True) for op in ops)
    text = re.sub(r"%[\w$.-]+", lambda name: numbers.setdefault(name.group(), f"%{len(numbers)}"), text)
    runs_on = f" {unit.target} as {options.device}" if unit.target != HOST else ""
    return f"{options.spec}{runs_on}\n{list(stored)}\n{text}"


def _verdict(alone: _Alone, reason: str, options: CompileOptions) -> Witnessed:
    if reason:
        return Witnessed(*alone.named, "left out", reason=reason)
    try:
        return alone.witness(options)
    except (UnsupportedError, _LeftOutError) as error:  # what the interpreter does not know has no other witness
        reason = error.message if isinstance(error, LowerkitError) else str(error)
        return Witnessed(*alone.named, "left out", reason=reason)


class _LeftOutError(Exception):
    """Why a region was not run."""


@dataclass(frozen=True)
class _Case:
    kind: str
    name: str
    inputs: Sequence[Array]


class _Alone:
    """One region: its operands, and the cases that it is run on."""

    def __init__(self, unit: Unit, interpreted: Unit, stored: Sequence[bool], extents: OpenExtents | None) -> None:
        self.unit = unit
        self.interpreted = interpreted
        self.stored = stored
        self.extents = extents
        self.types = [ir.RankedTensorType(value.type) for value in unit.block.arguments]
        self.has_places = any(op.operation.name in _LOOK_UPS for op in unit.block.operations)

    @property
    def named(self) -> tuple[str, str]:
        """The kind, and the operands for people."""
        text = ", ".join(f"{each.element_type}[{','.join(map(_extent, each.shape))}]" for each in self.types)
        if self.unit.view is not None:
            return f"a function of {self.unit.target}", text
        kind = ir.StringAttr(self.unit.op.attributes["kind"]).value
        return f"{kind} on {self.unit.target}" if self.unit.target != HOST else kind, text

    def witness(self, options: CompileOptions) -> Witnessed:
        """Compiles the region and runs all cases."""
        extents, kind = self.extents, self.named[0]
        shapes = extents.shapes(extents.sizes[0]) if extents is not None else [tuple(each.shape) for each in self.types]
        operands = self._drawn(shapes)
        *_, piece = (
            [region_piece(self.unit.op, operands, self.stored)]
            if self.unit.target == HOST
            else self.unit.pieces(operands, self.stored)
        )
        if extents is not None:
            piece.program.signature = extents.signature(piece.program.signature, self.stored)
        given = CompileOptions(options.target, golden=False, use_cache=options.use_cache, device=options.device)
        compiled = compile_program(piece.program, given)
        try:
            session = compiled.session
        except RuntimeFault as fault:
            raise _LeftOutError(f"{fault.code}: {fault.message}") from fault
        counts: Counter[str] = Counter()
        differences: dict[str, Difference] = {}
        for case in self._cases(piece, operands):
            inputs = iter(case.inputs)
            pairs = zip(operands, self.stored, strict=True)
            whole = [array if is_stored else next(inputs) for array, is_stored in pairs]
            text = _difference(self.interpreted, session, kind, case.inputs, whole, ties=case.kind == "special")
            if text is None:
                continue
            counts[case.kind] += 1
            if text:
                differences.setdefault(case.kind, Difference(case.name, text))
        if not counts:
            return Witnessed(*self.named, "left out", reason="the interpreter takes none of the values that were tried")
        return Witnessed(*self.named, "differs" if differences else "same", dict(counts), list(differences.values()))

    def _cases(self, piece: Piece, operands: Sequence[Array]) -> Iterator[_Case]:
        yield _Case("values", "drawn values", piece.inputs)
        for sizes in self.extents.sizes[1:] if self.extents is not None else ():
            assert self.extents is not None, "it has sizes"
            arrays = self._drawn(self.extents.shapes(sizes))
            inputs = [array for array, is_stored in zip(arrays, self.stored, strict=True) if not is_stored]
            yield _Case("extents", text_of(sizes), inputs)
        if not any(array.size for array in piece.inputs):
            return
        together = sum(array.size for array in operands) > _SMALL
        special = (special_inputs_together if together else special_inputs)(piece.program.signature, piece.inputs)
        for case in special:
            if not (self.has_places and "nteger" in case.name):
                yield _Case("special", case.name, case.inputs)

    def _drawn(self, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        generator = np.random.default_rng(0)
        least = min([extent for shape in shapes for extent in shape], default=1)
        found: list[Array] = []
        for each, shape in zip(self.types, shapes, strict=True):
            dtype = np.dtype(NUMPY_DTYPES[str(each.element_type)])
            if dtype == np.bool_:
                found.append(generator.random(shape) < 0.5)
            elif dtype.kind in "iu":
                info = np.iinfo(dtype)
                low, high = (0, least) if self.has_places else (max(info.min, -100), min(info.max, 100))
                found.append(generator.integers(low, max(low + 1, high), shape).astype(dtype))
            else:
                size = math.prod(shape)
                found.append(np.resize(generator.standard_normal(min(size, _DRAWN)).astype(dtype), shape))
        return found


def _extent(extent: int) -> str:
    return "?" if extent < 0 else str(extent)


def _difference(
    unit: Unit, session: Session, kind: str, inputs: Sequence[Array], whole: Sequence[Array], *, ties: bool
) -> str | None:
    """Returns what differs, empty where nothing does; None where the interpreter, or a guard, refuses the values."""
    try:
        expected = unit.run(whole, float64=False)
    except UnsupportedError:
        raise
    except LowerkitError:
        return None
    try:
        ours = session.run(*inputs)
    except RuntimeFault as fault:
        return None if fault.code == "LK8004" else f"the interpreter computes it, ours refuses: {fault.message}"
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
