"""Builds kernel text: named SSA values with their types, loops, and typed loads and stores on raw pointers.

Vocabulary
    element: an MLIR scalar type by name (``f32``, ``bf16``, ``i64``, ``i1`` ...).
    lanes: elements of a vector; ``lanes == 1`` means a plain scalar, so every helper works on both.
    storage: what memory holds for an element; it differs only for ``i1``, which is one byte (0 or 1).

Index arithmetic is in ``i64`` throughout (``scf.for`` takes any integer type), so no index casts appear. Pointers are
``!llvm.ptr`` with element-wise ``llvm.getelementptr``: constant distances fold into x86 displacements, which is what
lets a 14-row tile address its rows from one register.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lowerkit.targets.cpu.text.ssa_values import (
    POINTER,
    Value,
    bit_width,
    element_bytes,
    float_literal,
    is_float,
    vector_type,
)

__all__ = ["TextBuilder", "Value", "bit_width", "element_bytes", "float_literal", "is_float", "vector_type"]
_ONE_SHUFFLE = 16  # lanes of 16 bits that AVX-512 spreads to 32 bits by one shuffle


class TextBuilder:
    """Accumulates the lines of one function body (or of several functions) and hands out fresh SSA names."""

    def __init__(self, indent: int = 2) -> None:
        self.lines: list[str] = []
        self.native_bf16 = False
        """Round to bf16 with the CPU's instruction (AVX512_BF16): denormal results become zero."""
        self.vnni = False
        """Sum products of bytes with the CPU's instruction (AVX512_VNNI)."""
        self.invariant = False  # what RegionView.invariant asks for
        self._indent = indent
        self._names = 0
        self._first_lane: set[Value] = set()
        """Masks that are true in the first lane alone."""

    # --- raw text ---------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Everything emitted so far."""
        return "\n".join(self.lines) + "\n"

    def fresh(self, type_: str) -> Value:
        """A new SSA name of ``type_``, not defined yet."""
        self._names += 1
        return Value(f"%v{self._names}", type_)

    def line(self, text: str) -> None:
        """Emits one op without a result."""
        self.lines.append("  " * self._indent + text)

    def op(self, text: str, type_: str) -> Value:
        """Emits one op with a single result of ``type_``."""
        result = self.fresh(type_)
        self.line(f"{result} = {text}")
        return result

    @contextmanager
    def block(self, header: str, footer: str = "}") -> Generator[None]:
        """Emits ``header``, the lines made inside one level deeper, then ``footer``."""
        self.line(header)
        self._indent += 1
        yield
        self._indent -= 1
        self.line(footer)

    # --- constants --------------------------------------------------------------------------------------------

    def i64(self, value: int) -> Value:
        """An ``i64`` constant."""
        return self.op(f"arith.constant {value} : i64", "i64")

    def constant(self, value: float | int, element: str, lanes: int = 1) -> Value:
        """A scalar constant, or a vector with ``value`` in every lane."""
        type_ = vector_type(element, lanes)
        literal = float_literal(float(value), element) if is_float(element) else str(int(value))
        if element == "i1":
            literal = "true" if value else "false"
            if lanes == 1:
                return self.op(f"arith.constant {literal}", "i1")
        return self.op(f"arith.constant {literal if lanes == 1 else f'dense<{literal}>'} : {type_}", type_)

    def like(self, value: float | int, reference: Value) -> Value:
        """A constant of the type of ``reference``."""
        return self.constant(value, reference.element, reference.lanes)

    def lane_numbers(self, lanes: int, element: str = "i64") -> Value:
        """0, 1, 2 ... in the lanes of one vector."""
        if lanes == 1:
            return self.constant(0, element)
        numbers = ", ".join(str(lane) for lane in range(lanes))
        type_ = vector_type(element, lanes)
        return self.op(f"arith.constant dense<[{numbers}]> : {type_}", type_)

    # --- arithmetic -------------------------------------------------------------------------------------------

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """An op of two operands and a result of one type, such as ``arith.addf``."""
        assert a.type == b.type, (op, a.type, b.type)
        return self.op(f"{op} {a}, {b} : {a.type}", a.type)

    def unary(self, op: str, a: Value) -> Value:
        """An op of one operand and a result of its type, such as ``math.absf``."""
        return self.op(f"{op} {a} : {a.type}", a.type)

    def add(self, a: Value, b: Value) -> Value:
        """Sum of integers or floats."""
        return self.binary("arith.addf" if is_float(a.element) else "arith.addi", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        """Difference of integers or floats."""
        return self.binary("arith.subf" if is_float(a.element) else "arith.subi", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Product of integers or floats."""
        return self.binary("arith.mulf" if is_float(a.element) else "arith.muli", a, b)

    def div(self, a: Value, b: Value) -> Value:
        """Quotient of floats, or of unsigned integers."""
        return self.binary("arith.divf" if is_float(a.element) else "arith.divui", a, b)

    def rem(self, a: Value, b: Value) -> Value:
        """Remainder of unsigned integers."""
        return self.binary("arith.remui", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c`` with one rounding."""
        return self.op(f"math.fma {a}, {b}, {c} : {a.type}", a.type)

    def minimum(self, a: Value, b: Value) -> Value:
        """Smaller of two signed integers."""
        return self.binary("arith.minsi", a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """Larger of two signed integers."""
        return self.binary("arith.maxsi", a, b)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """``arith.cmpf`` or ``arith.cmpi`` by the element type."""
        op = "arith.cmpf" if is_float(a.element) else "arith.cmpi"
        return self.op(f"{op} {predicate}, {a}, {b} : {a.type}", vector_type("i1", a.lanes))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """``a`` where ``condition`` holds, else ``b``; the condition may be a scalar ``i1``."""
        if a.element in ("f16", "bf16"):
            # LLVM moves narrow floats through f32 where the CPU has none, with calls of its run-time library.
            return self.bitcast(self.select(condition, self.bitcast(a, "i16"), self.bitcast(b, "i16")), a.element)
        types = a.type if condition.lanes == 1 else f"{condition.type}, {a.type}"
        return self.op(f"arith.select {condition}, {a}, {b} : {types}", a.type)

    def cast(self, op: str, a: Value, element: str) -> Value:
        """A conversion op such as ``arith.extf`` to ``element``."""
        type_ = vector_type(element, a.lanes)
        return self.op(f"{op} {a} : {a.type} to {type_}", type_)

    def bitcast(self, a: Value, element: str) -> Value:
        """The same bits as another element type of the same width."""
        return self.cast("arith.bitcast", a, element)

    def widen(self, a: Value, element: str = "f32") -> Value:
        """``a`` as ``element``, exactly, when it is a narrower float; ``a`` itself when it has that type already."""
        if a.element == element:
            return a
        if a.element == "bf16":
            if a.lanes == _ONE_SHUFFLE:
                # One shuffle with zero in place of an extension and a shift, which compete for the same ports.
                half = self.bitcast(a, "i16")
                order = [place for lane in range(a.lanes) for place in (a.lanes + lane, lane)]
                mixed, kind = self.shuffle(half, self.like(0, half), order), vector_type("f32", a.lanes)
                return self.widen(self.op(f"vector.bitcast {mixed} : {mixed.type} to {kind}", kind), element)
            bits = self.cast("arith.extui", self.bitcast(a, "i16"), "i32")
            single = self.bitcast(self.binary("arith.shli", bits, self.like(16, bits)), "f32")
            return self.widen(single, element)
        return self.cast("arith.extf", a, element)

    def narrow(self, a: Value, element: str) -> Value:
        """``a`` rounded to nearest even to ``element``; ``a`` itself when it has that type already.

        Unless :attr:`native_bf16` is set, bf16 is rounded in integer arithmetic: nine instructions, exact for
        denormals too, and without a call of LLVM's run-time library on CPUs that lack the conversion.
        """
        if a.element == element:
            return a
        if element != "bf16" or a.element != "f32" or self.native_bf16:
            return self.cast("arith.truncf", a, element)
        bits = self.bitcast(a, "i32")
        odd = self.binary("arith.andi", self.binary("arith.shrui", bits, self.like(16, bits)), self.like(1, bits))
        rounded = self.add(self.add(bits, self.like(0x7FFF, bits)), odd)
        quiet = self.like(0x7FC00000, bits)
        rounded = self.select(self.compare("uno", a, a), quiet, rounded)
        half = self.cast("arith.trunci", self.binary("arith.shrui", rounded, self.like(16, bits)), "i16")
        return self.bitcast(half, "bf16")

    def broadcast(self, a: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return a
        if a.element == "bf16":
            # With AVX512_BF16 LLVM holds a lone bf16 in f32, and rounds it again for the lanes: denormals become zero.
            return self.bitcast(self.broadcast(self.bitcast(a, "i16"), lanes), "bf16")
        return self.op(f"vector.broadcast {a} : {a.type} to {vector_type(a.type, lanes)}", vector_type(a.type, lanes))

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """``vector.shuffle``: lane numbers count through ``a`` and on into ``b``."""
        type_ = vector_type(a.element, len(lanes))
        return self.op(f"vector.shuffle {a}, {b} {list(lanes)} : {a.type}, {b.type}", type_)

    def reduce(self, kind: str, a: Value) -> Value:
        """``vector.reduction`` over all lanes; ``kind`` such as ``add``, ``or``, ``maximumf``."""
        return a if a.lanes == 1 else self.op(f"vector.reduction <{kind}>, {a} : {a.type} into {a.element}", a.element)

    # --- memory -----------------------------------------------------------------------------------------------

    def offset(self, pointer: Value, distance: Value | int, element: str) -> Value:
        """``pointer`` moved by ``distance`` elements."""
        stored = "i8" if element == "i1" else element
        if isinstance(distance, int):
            if distance == 0:
                return pointer
            return self.op(f"llvm.getelementptr {pointer}[{distance}] : ({POINTER}) -> {POINTER}, {stored}", POINTER)
        return self.op(f"llvm.getelementptr {pointer}[{distance}] : ({POINTER}, i64) -> {POINTER}, {stored}", POINTER)

    def load(self, pointer: Value, element: str, lanes: int = 1, mask: Value | None = None) -> Value:
        """Loads ``lanes`` elements, aligned to one element; lanes whose ``mask`` is false are zero and not touched."""
        if element in ("f16", "bf16"):
            return self.bitcast(self.load(pointer, "i16", lanes, mask), element)
        stored = "i8" if element == "i1" else element
        type_ = vector_type(stored, lanes)
        if mask is None:
            result = self.op(
                f"llvm.load {pointer} {{alignment = {element_bytes(element)} : i64}} : {POINTER} -> {type_}", type_
            )
        else:
            zero = self.constant(0, stored, lanes)
            result = self.op(
                f"llvm.intr.masked.load {pointer}, {mask}, {zero} {{alignment = {element_bytes(element)} : i32}} : "
                f"({POINTER}, {mask.type}, {type_}) -> {type_}",
                type_,
            )
        return self.compare("ne", result, self.like(0, result)) if element == "i1" else result

    def store(self, value: Value, pointer: Value, mask: Value | None = None) -> None:
        """Stores ``value`` (aligned to one element), only the lanes whose ``mask`` is true."""
        bytes_ = element_bytes(value.element)
        if value.element == "i1":
            value = self.cast("arith.extui", value, "i8")
        elif value.element in ("f16", "bf16"):
            value = self.bitcast(value, "i16")
        if mask in self._first_lane:
            # LLVM 22 stores the lane before its narrowing where AVX-512 narrows as it stores: bytes behind it are lost.
            value, mask = self.op(f"vector.extract {value}[0] : {value.element} from {value.type}", value.element), None
        if mask is None:
            self.line(f"llvm.store {value}, {pointer} {{alignment = {bytes_} : i64}} : {value.type}, {POINTER}")
        else:
            self.line(
                f"llvm.intr.masked.store {value}, {pointer}, {mask} {{alignment = {bytes_} : i32}} : "
                f"{value.type}, {mask.type} into {POINTER}"
            )

    def mask(self, count: Value | int, lanes: int) -> Value:
        """True in the first ``count`` lanes."""
        if isinstance(count, int):
            bits = ", ".join("true" if lane < count else "false" for lane in range(lanes))
            mask = self.op(f"arith.constant dense<[{bits}]> : {vector_type('i1', lanes)}", vector_type("i1", lanes))
            if count == 1:
                self._first_lane.add(mask)
            return mask
        limit = self.broadcast(self.cast("arith.trunci", count, "i32"), lanes)
        return self.compare("slt", self.lane_numbers(lanes, "i32"), limit)

    def prefetch(self, pointer: Value, locality: int = 3, write: bool = False) -> None:
        """Fetches the line of ``pointer`` for reading or writing; locality 3 into L1, 2 into L2."""
        options = f"cache = 1 : i32, hint = {locality} : i32, rw = {int(write)} : i32"
        self.line(f'"llvm.intr.prefetch"({pointer}) <{{{options}}}> : ({POINTER}) -> ()')

    # --- control ----------------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, lower: Value, upper: Value, step: Value, carried: Sequence[Value] = ()
    ) -> Generator[tuple[Value, list[Value], list[Value]]]:
        """An ``scf.for`` over ``i64``; yields ``(induction variable, carried values inside, results after)``.

        The body must end with :meth:`yield_` of the next carried values when there are any.
        """
        induction = self.fresh("i64")
        inside = [self.fresh(value.type) for value in carried]
        results = [self.fresh(value.type) for value in carried]
        if carried:
            pairs = ", ".join(f"{a} = {b}" for a, b in zip(inside, carried, strict=True))
            types = ", ".join(value.type for value in carried)
            names = ", ".join(str(value) for value in results)
            header = (
                f"{names} = scf.for {induction} = {lower} to {upper} step {step} "
                f"iter_args({pairs}) -> ({types}) : i64 {{"
            )
        else:
            header = f"scf.for {induction} = {lower} to {upper} step {step} : i64 {{"
        with self.block(header):
            yield induction, inside, results

    def yield_(self, values: Sequence[Value]) -> None:
        """Ends the body of a loop or branch that carries values."""
        self.line(f"scf.yield {', '.join(map(str, values))} : {', '.join(value.type for value in values)}")

    @contextmanager
    def when(self, condition: Value) -> Generator[None]:
        """An ``scf.if`` without results."""
        with self.block(f"scf.if {condition} {{"):
            yield
