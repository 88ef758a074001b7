"""wgmma: products of matrices that four warps make together, behind the back of their threads.

A product is computed when its group is waited for, from the registers and the shared memory of that time: what is read
without a wait is old, and what is overwritten without one spoils the product. ``wgmma.fence`` shows in no value;
``ordering_lint`` looks for where it is missing.

Thread 32 w + 4 g + t has of A (64 by k) the rows 16 w + g and 16 w + g + 8, of D (64 by n) the same rows and the
columns 8 j + 2 t and 8 j + 2 t + 1 for every j.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.matrix_descriptors import read_tile
from lowerkit.runtimes.cuda.simulated.batch import WARPGROUP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.products import add_product
from lowerkit.runtimes.cuda.simulated.text.syntax import Vector

_ROWS = 64
_DEPTH = 32  # bytes along K
_OPEN = -1
_SIZES: Mapping[str, int] = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_EIGHT_BITS = ("e4m3", "e5m2")
_INTEGERS = ("s8", "u8")
_RESULTS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("f32",), "f16": ("f32", "f16"), "tf32": ("f32",), "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16"),
    "s8": ("s32",), "u8": ("s32",),
}  # fmt: skip
_ACCUMULATORS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "s32": np.dtype(np.int32)}


@dataclass(frozen=True)
class _Form:
    """What a wgmma.mma_async multiplies.

    Attributes:
        columns: of B and D.
        result, a, b: types.
        negated: whether A, and B, are.
        transposed: whether M rather than K is contiguous in A, N in B.
        saturates: whether sums of integers stay in their range.
    """

    columns: int
    result: str
    a: str
    b: str
    negated: tuple[bool, bool]
    transposed: tuple[bool, bool]
    saturates: bool

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return _SIZES[self.a]

    @property
    def depth(self) -> int:
        """Elements along K."""
        return _DEPTH // self.size


@dataclass
class _Product:
    """One product that some warpgroups have begun.

    Attributes:
        compute: of warpgroups, by their numbers.
        members: those that still have to compute, bool.
        groups: the number of the group that each of them has committed it in.
    """

    compute: Callable[[Array], None]
    members: Array
    groups: Array


class _Products:
    """The products of a batch that have been begun and not waited for."""

    def __init__(self, batch: Batch) -> None:
        count = batch.blocks * batch.shape[1] // WARPGROUP
        self._products: list[_Product] = []
        self._committed = np.zeros(count, np.int64)

    def begin(self, active: Array, compute: Callable[[Array], None]) -> None:
        self._products.append(_Product(compute, active.copy(), np.full(active.size, _OPEN)))

    def commit(self, active: Array) -> None:
        for product in self._products:
            new = active & product.members & (product.groups == _OPEN)
            product.groups[new] = self._committed[new]
        self._committed += active

    def wait(self, active: Array, keep: int) -> None:
        for product in self._products:
            done = active & product.members & (product.groups != _OPEN)
            done &= product.groups < self._committed - keep
            if done.any():
                product.members &= ~done
                product.compute(np.flatnonzero(done))
        self._products = [product for product in self._products if product.members.any()]


def _active(read: InstructionReader, batch: Batch) -> Array:
    """Returns which warpgroups are active, bool."""
    if batch.shape[1] % WARPGROUP:
        raise read.fault(f"blocks of {batch.geometry.threads} threads are no whole warpgroups of {WARPGROUP}")
    threads = batch.mask(batch.active).reshape(-1, WARPGROUP)
    active: Array = np.asarray(threads.any(1))
    if not threads[active].all():
        thread = int(np.argmax(threads.reshape(-1)))
        raise read.fault(f"{batch.thread_name(thread)} comes without others of its four warps")
    return active


def _wgmma(read: InstructionReader) -> Step:
    name = read.required("mma_async", "fence", "commit_group", "wait_group")
    read.required("sync")
    read.required("aligned")
    if name == "mma_async":
        return _multiply(read)
    read.finish()
    if name == "wait_group":
        read.count(1)
        keep = read.immediate(0)
        return lambda batch: batch.state(_Products).wait(_active(read, batch), keep)
    read.count(0)
    if name == "commit_group":
        return lambda batch: batch.state(_Products).commit(_active(read, batch))
    return lambda batch: _check_fence(read, batch)


def _check_fence(read: InstructionReader, batch: Batch) -> None:
    _active(read, batch)


def _multiply(read: InstructionReader) -> Step:
    form, a, b, accumulates = _read_form(read)
    targets = [read.target(part, "b32") for part in read.parts(read.operand(0))]
    expected = form.columns // 4 if form.result == "f16" else form.columns // 2
    if len(targets) != expected or len(a) not in (1, 4):
        raise read.unknown("the number of registers")

    def run(batch: Batch) -> None:
        active = _active(read, batch)
        # Descriptors and the predicate are read now, matrices in registers and in shared memory when it is computed.
        firsts = np.arange(active.size) * WARPGROUP
        slot, negated = accumulates
        adds = (batch.full(batch.registers[slot]).reshape(-1)[firsts]) != negated
        left = None if len(a) == 4 else batch.full(batch.registers[a[0]]).reshape(-1)[firsts]
        right = batch.full(batch.registers[b]).reshape(-1)[firsts]

        def compute(groups: Array) -> None:
            shape = form.depth, form.size
            if left is None:
                x = _fragment(batch, a, groups, form)
            else:
                x = read_tile(read, batch, groups, left[groups], (_ROWS, *shape), transposed=form.transposed[0])
            y = read_tile(read, batch, groups, right[groups], (form.columns, *shape), transposed=form.transposed[1])
            old = _accumulator(batch, targets, groups, form)
            old = np.where(adds[groups][:, None, None], old, old.dtype.type(0))
            _write(batch, targets, groups, _sum(read, batch, form, (x, y), old))

        batch.state(_Products).begin(active, compute)

    return run


def _read_form(read: InstructionReader) -> tuple[_Form, list[int], int, tuple[int, bool]]:
    """Returns what is multiplied, the slots of A (a descriptor, or four registers) and of B, and the predicate."""
    modifiers = read.instruction.modifiers
    shapes = [found for found in map(_SHAPE.fullmatch, modifiers) if found]
    types = [modifier for modifier in modifiers if modifier in (*_SIZES, *_ACCUMULATORS)]
    if len(shapes) != 1 or len(types) != 3:
        raise read.unknown("the shape or the types")
    columns, depth = int(shapes[0][1]), int(shapes[0][2])
    result, a, b = types
    read.drop(shapes[0][0], *types)
    saturates = read.flag("satfinite")
    read.finish()
    mixed = {a, b} <= set(_EIGHT_BITS) or {a, b} <= set(_INTEGERS)
    if a not in _SIZES or b not in _SIZES or (a != b and not mixed) or result not in _RESULTS[a]:
        raise read.unknown("the types")
    if depth * _SIZES[a] != _DEPTH or columns % 8 or not 8 <= columns <= 256 or (saturates and a not in _INTEGERS):
        raise read.unknown("the shape")
    in_registers = isinstance(read.operand(1), Vector)
    layouts = 0 if _SIZES[a] != 2 else 1 if in_registers else 2
    scales = 0 if a in _INTEGERS else 2
    read.count(4 + scales + layouts)
    numbers = [read.immediate(at) for at in range(4, 4 + scales + layouts)]
    if any(scale not in (1, -1) for scale in numbers[:scales]) or any(each not in (0, 1) for each in numbers[scales:]):
        raise read.unknown("a factor or a layout")
    negated = [scale == -1 for scale in numbers[:scales]] or [False, False]
    transposed = [False] * (2 - layouts) + [each == 1 for each in numbers[scales:]]
    form = _Form(columns, result, a, b, (negated[0], negated[1]), (transposed[0], transposed[1]), saturates)
    slots = [read.value(part, "b32" if in_registers else "b64") for part in read.parts(read.operand(1))]
    return form, slots, read.source(2, "b64"), read.predicate(3)


_SHAPE = re.compile(r"m64n(\d+)k(\d+)")


def _fragment(batch: Batch, slots: Sequence[int], groups: Array, form: _Form) -> Array:
    """Returns A from the registers of warpgroups, [groups, rows, k]."""
    words = np.stack([batch.full(batch.registers[slot]).reshape(-1, WARPGROUP)[groups] for slot in slots])
    # [half of k, half of the rows, group, warp, g, t, element]
    parts = words.view(f"u{form.size}").reshape(2, 2, groups.size, 4, 8, 4, 4 // form.size)
    return parts.transpose(2, 3, 1, 4, 0, 5, 6).reshape(groups.size, _ROWS, form.depth)


def _accumulator(batch: Batch, slots: Sequence[int], groups: Array, form: _Form) -> Array:
    """Returns D from the registers of warpgroups, [groups, rows, columns]."""
    words = np.stack([batch.full(batch.registers[slot]).reshape(-1, WARPGROUP)[groups] for slot in slots])
    values = words.view(_ACCUMULATORS[form.result])
    if form.result == "f16":  # [j, half of the rows, group, warp, g, t, column of two]
        parts = values.reshape(-1, 2, groups.size, 4, 8, 4, 2).transpose(2, 3, 1, 4, 0, 5, 6)
    else:  # [j, half of the rows, column of two, group, warp, g, t]
        parts = values.reshape(-1, 2, 2, groups.size, 4, 8, 4).transpose(3, 4, 1, 5, 0, 6, 2)
    return np.ascontiguousarray(parts).reshape(groups.size, _ROWS, form.columns)


def _write(batch: Batch, targets: Sequence[int], groups: Array, values: Array) -> None:
    """Writes D, [groups, rows, columns], to the registers of warpgroups."""
    parts = values.reshape(groups.size, 4, 2, 8, -1, 4, 2)
    order = (4, 2, 0, 1, 3, 5, 6) if values.dtype == np.float16 else (4, 2, 6, 0, 1, 3, 5)
    words = np.ascontiguousarray(parts.transpose(order)).view(np.uint32).reshape(len(targets), groups.size, WARPGROUP)
    every = groups.size * WARPGROUP == batch.blocks * batch.shape[1]
    for target, word in zip(targets, words, strict=True):
        if every:
            batch.registers[target] = word.reshape(batch.shape)
            continue
        register = batch.full(batch.registers[target]).reshape(-1, WARPGROUP).copy()
        register[groups] = word
        batch.registers[target] = register.reshape(batch.shape)


def _sum(read: InstructionReader, batch: Batch, form: _Form, factors: tuple[Array, Array], old: Array) -> Array:
    """Returns old + A B, [groups, rows, columns]; A is [groups, rows, k], B [groups, columns, k]."""
    how = batch.arithmetic
    found = add_product(
        how, (form.a, form.b), factors, old, negated=form.negated, saturates=form.saturates, instruction="wgmma"
    )
    if found is None:
        raise read.fault(f"the arithmetic of wgmma for {form.a} on {how.generation or 'this target'} is not known")
    return found


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"wgmma": _wgmma}
