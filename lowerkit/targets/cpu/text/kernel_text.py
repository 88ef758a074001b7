"""What the memory-bound kernel families add to :class:`IndexText`: typed buffers, loops, vector strips.

Vocabulary
    Buffer: the pointer of one kernel buffer with its element type.
    strip: the vectorized walk over one contiguous range: an unrolled main loop, a loop of single vectors, and one
        masked vector for what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lowerkit.targets.cpu.text.index_text import Index, IndexText
from lowerkit.targets.cpu.text.text_builder import Value, element_bytes, vector_type

__all__ = ["Buffer", "Index", "KernelText", "Loop"]

_FLOAT_REDUCTIONS = {"add": "arith.addf", "mul": "arith.mulf", "max": "arith.maximumf", "min": "arith.minimumf"}
_INT_REDUCTIONS = {
    "add": "arith.addi",
    "mul": "arith.muli",
    "max": "arith.maxsi",
    "min": "arith.minsi",
    "or": "arith.ori",
    "and": "arith.andi",
}


@dataclass(frozen=True)
class Buffer:
    """One kernel buffer (or a piece of scratch): where it starts and what it holds."""

    pointer: Value
    element: str

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return element_bytes(self.element)


class Loop:
    """One ``scf.for`` being written: its index, the carried values inside it and its results after it."""

    def __init__(self, index: Value, carried: list[Value], results: list[Value]) -> None:
        self.index = index
        self.carried = carried
        self.results = results


class KernelText(IndexText):
    """An :class:`IndexText` that knows typed buffers, reductions over lanes and vector strips."""

    # --- memory -----------------------------------------------------------------------------------------------

    def read(self, buffer: Buffer, index: Index, lanes: int = 1, mask: Value | None = None) -> Value:
        """Loads ``lanes`` consecutive elements from ``index``; masked lanes are not touched and read as zero."""
        return self.load(self.offset(buffer.pointer, index, buffer.element), buffer.element, lanes, mask)

    def write(self, value: Value, buffer: Buffer, index: Index, mask: Value | None = None) -> None:
        """Stores ``value`` from ``index`` on; masked lanes are not touched."""
        self.store(value, self.offset(buffer.pointer, index, buffer.element), mask)

    def part(self, buffer: Buffer, index: Index, element: str | None = None) -> Buffer:
        """The buffer that starts ``index`` elements into ``buffer``, seen as ``element``."""
        return Buffer(self.offset(buffer.pointer, index, buffer.element), element or buffer.element)

    def strided_read(self, buffer: Buffer, index: Index, stride: Index, lanes: int, mask: Value | None) -> Value:
        """Loads lanes that lie ``stride`` elements apart (a gather; 0 broadcasts one element)."""
        if stride == 0:
            return self.broadcast(self.read(buffer, index), lanes)
        if stride == 1 or lanes == 1:
            return self.read(buffer, index, lanes, mask)
        if buffer.element in ("f16", "bf16"):
            bits = Buffer(buffer.pointer, "i16")
            return self.bitcast(self.strided_read(bits, index, stride, lanes, mask), buffer.element)
        if buffer.bytes >= 4:
            return self._gather(buffer, index, stride, lanes, mask)
        # Narrow elements have no gather instruction: one scalar load a lane.
        result = self.constant(0, buffer.element, lanes)
        for lane in range(lanes):
            place = self.offset(buffer.pointer, self.iadd(index, self.imul(stride, lane)), buffer.element)
            if mask is not None:
                # A masked lane reads what always stands: with nothing left, even lane 0 lies behind the buffer.
                bit = self.op(f"vector.extract {mask}[{lane}] : i1 from {mask.type}", "i1")
                place = self.op(f"arith.select {bit}, {place}, %buffers : !llvm.ptr", "!llvm.ptr")
            element = self.load(place, buffer.element)
            result = self.op(
                f"vector.insert {element}, {result}[{lane}] : {element.type} into {result.type}", result.type
            )
        return result

    def strided_write(self, value: Value, buffer: Buffer, index: Index, stride: Index, mask: Value | None) -> None:
        """Stores lanes that lie ``stride`` elements apart."""
        lanes = value.lanes
        if stride == 1 or lanes == 1:
            self.write(value, buffer, index, mask)
            return
        if value.element in ("f16", "bf16"):
            value, buffer = self.bitcast(value, "i16"), Buffer(buffer.pointer, "i16")
        for lane in range(lanes):
            element = self.op(f"vector.extract {value}[{lane}] : {value.element} from {value.type}", value.element)
            at = self.iadd(index, self.imul(stride, lane))
            if mask is None:
                self.write(element, buffer, at)
            else:
                bit = self.op(f"vector.extract {mask}[{lane}] : i1 from {mask.type}", "i1")
                with self.when(bit):
                    self.write(element, buffer, at)

    def _gather(self, buffer: Buffer, index: Index, stride: Index, lanes: int, mask: Value | None) -> Value:
        numbers = self.lane_numbers(lanes)
        distances = self.mul(numbers, self.broadcast(self.as_value(stride), lanes))
        base = self.offset(buffer.pointer, index, buffer.element)
        type_ = vector_type(buffer.element, lanes)
        pointers = self.op(
            f"llvm.getelementptr {base}[{distances}] : (!llvm.ptr, {distances.type}) -> vector<{lanes}x!llvm.ptr>, "
            f"{buffer.element}",
            f"vector<{lanes}x!llvm.ptr>",
        )
        keep = mask if mask is not None else self.mask(lanes, lanes)
        zero = self.constant(0, buffer.element, lanes)
        return self.op(
            f"llvm.intr.masked.gather {pointers}, {keep}, {zero} {{alignment = {buffer.bytes} : i32}} : "
            f"({pointers.type}, {keep.type}, {type_}) -> {type_}",
            type_,
        )

    # --- reductions over lanes --------------------------------------------------------------------------------

    def combine(self, kind: str, a: Value, b: Value) -> Value:
        """One step of a reduction: ``add``, ``mul``, ``max``, ``min`` (NaN wins), ``or``, ``and``."""
        table = _FLOAT_REDUCTIONS if a.element in ("f32", "f64", "f16", "bf16") else _INT_REDUCTIONS
        if a.element == "i1" and kind in ("max", "min"):
            kind = "or" if kind == "max" else "and"
        return self.binary(table[kind], a, b)

    def fold_lanes(self, kind: str, a: Value) -> Value:
        """Reduces all lanes of ``a`` in a balanced tree: log2(lanes) shuffles, and the rounding of pairwise sums."""
        lanes = a.lanes
        if lanes == 1:
            return a
        while lanes > 2:
            half = lanes // 2
            a = self.combine(kind, self.shuffle(a, a, range(half)), self.shuffle(a, a, range(half, lanes)))
            lanes = half
        low, high = (self.op(f"vector.extract {a}[{at}] : {a.element} from {a.type}", a.element) for at in (0, 1))
        return self.combine(kind, low, high)

    # --- control ----------------------------------------------------------------------------------------------

    @contextmanager
    def span(self, lower: Index, upper: Index, step: Index = 1, carried: Sequence[Value] = ()) -> Generator[Loop]:
        """An ``scf.for`` with index bounds; a body with carried values ends with :meth:`yield_`."""
        bounds = (self.as_value(lower), self.as_value(upper), self.as_value(step))
        with self.loop(*bounds, carried) as (index, inside, results):
            yield Loop(index, inside, results)

    def branch(
        self, condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """An ``scf.if`` whose two sides return values of the same types."""
        at = len(self.lines)
        self._indent += 1
        values = then()
        self.yield_(values)
        self._indent -= 1
        results = [self.fresh(value.type) for value in values]
        types = ", ".join(value.type for value in values)
        names = ", ".join(str(value) for value in results)
        self.lines.insert(at, "  " * self._indent + f"{names} = scf.if {condition} -> ({types}) {{")
        with self.block("} else {"):
            self.yield_(otherwise())
        return results

    def strip(
        self,
        count: Index,
        lanes: int,
        body: Callable[[Index, Value | None, list[Value]], list[Value]],
        carried: Sequence[Value] = (),
        unroll: int = 1,
        guard_tail: bool = False,
    ) -> list[Value]:
        """Walks ``count`` elements in vectors of ``lanes``.

        ``body(index, mask, carried)`` handles the vector at ``index`` and returns the carried values after it; the
        mask is None for whole vectors. With ``unroll`` > 1 the main loop handles that many vectors a step, one after
        another, through the same carried values. A dynamic ``count`` runs the masked vector even when nothing is
        left, unless ``guard_tail`` asks for a branch around it (which then cannot carry values).
        """
        values = list(carried)
        done: Index = 0
        for group in dict.fromkeys((unroll, 1)):
            width = group * lanes
            if isinstance(count, int):
                assert isinstance(done, int)
                steps = (count - done) // width
                end: Index = done + steps * width
                if steps == 0:
                    continue
                if steps == 1:
                    for part in range(group):
                        values = body(done + part * lanes, None, values)
                    done = end
                    continue
            else:
                left = self.isub(count, done)
                end = self.iadd(done, self.isub(left, self.irem(left, width)))
            with self.span(done, end, width, values) as loop:
                inner = list(loop.carried)
                for part in range(group):
                    inner = body(self.iadd(loop.index, part * lanes), None, inner)
                if inner:
                    self.yield_(inner)
            values = loop.results
            done = end
        rest = self.isub(count, done)
        if isinstance(rest, int):
            return body(done, self.mask(rest, lanes), values) if rest else values
        if lanes == 1:
            return values
        if guard_tail:
            assert not values, "a guarded tail carries nothing"
            with self.when(self.compare("sgt", rest, self.i64(0))):
                body(done, self.mask(rest, lanes), values)
            return values
        return body(done, self.mask(rest, lanes), values)
