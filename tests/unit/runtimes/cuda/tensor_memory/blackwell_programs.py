"""Kernels for sm_100a around instructions that use tensor memory, in parts that a test can leave out or replace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.unit.runtimes.cuda.matrix_images import DTYPES, image, small_integers
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel

Array = np.ndarray[Any, Any]
SHARED, B_START = 98304, 32768
SWIZZLES: Mapping[int, int] = {16: 0, 128: 2, 64: 4, 32: 6}
ALLOCATE = "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 512;"
RELINQUISH = "@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
DEALLOCATE = "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;"
WAIT_LD, WAIT_ST = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];"
BARRIER = "bar.sync 0;"
POLL = "$poll: mbarrier.try_wait.parity.shared::cta.b64 %p2, [done], 0; @!%p2 bra $poll;"
FENCE = "tcgen05.fence::after_thread_sync;"
HEAD = f"""
  .reg .pred %p<5>; .reg .b32 %r<20>; .reg .b64 %x<9>; .reg .b32 %v<130>; .reg .b32 %base;
  .reg .b32 %mine; .reg .b32 %row; .reg .b64 %a; .reg .b64 %b; .reg .b32 %ta;
  .shared .align 1024 .b8 tiles[{SHARED}]; .shared .align 8 .b8 done[8]; .shared .align 4 .b8 at[4];
  mov.u32 %r0, %tid.x; setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p0, %r0, 0;
  {ALLOCATE}
  {RELINQUISH}
  @%p0 mbarrier.init.shared::cta.b64 [done], 1;
  {BARRIER}
  ld.shared.b32 %base, [at];
  mov.u32 %r6, %ctaid.x; mad.lo.u32 %row, %r6, 128, %r0;
  and.b32 %r1, %r0, 96; shl.b32 %r1, %r1, 16; add.u32 %mine, %base, %r1;
"""
TAIL = f"""
  {BARRIER}
  {DEALLOCATE}
  ret;
"""


def registers(count: int) -> str:
    return "{" + ", ".join(f"%v{number}" for number in range(count)) + "}"


@dataclass(frozen=True)
class Product:
    """One tcgen05.mma, and what lies around it.

    Attributes:
        kind: f16, tf32, f8f6f4 or i8.
        types: of A and B.
        rows, columns: of D.
        spans: of the swizzles of A and B; 16 for none.
        transposed, negated: whether A, and B, are.
        in_tensor_memory: whether A lies there.
        adds: whether D is added to.
        lane: where a matrix of 64 rows begins.
        extra: bits of the instruction descriptor beside those.
    """

    kind: str = "f16"
    types: tuple[str, str] = ("bf16", "bf16")
    rows: int = 128
    columns: int = 64
    spans: tuple[int, int] = (128, 128)
    transposed: tuple[bool, bool] = (False, False)
    negated: tuple[bool, bool] = (False, False)
    in_tensor_memory: bool = False
    adds: bool = True
    lane: int = 0
    extra: int = 0

    @property
    def depth(self) -> int:
        return 32 // np.dtype(DTYPES[self.types[0]]).itemsize

    @property
    def descriptor(self) -> int:
        """The instruction descriptor, from the table of its fields."""
        codes = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
        a, b = (codes[each] for each in self.types)
        fields = [(2 if self.kind == "i8" else 1, 4), (a, 7), (b, 10), (self.columns // 8, 17), (self.rows // 16, 24)]
        fields += [(int(flag), 13 + at) for at, flag in enumerate((*self.negated, *self.transposed))]
        return sum(value << at for value, at in fields) | self.extra

    @property
    def lanes(self) -> list[int]:
        """The lane of each row of D: 16 rows of 64 go to every 32 lanes."""
        if self.rows == 128:
            return list(range(128))
        return [32 * (row // 16) + self.lane + row % 16 for row in range(64)]

    @property
    def instruction(self) -> str:
        a = "[%ta]" if self.in_tensor_memory else "%a"
        offset = self.lane << 16
        return (
            f"setp.ne.u32 %p4, {int(self.adds)}, 0; tcgen05.mma.cta_group::1.kind::{self.kind} [%base+{offset}], {a}, "
            f"%b, {self.descriptor}, %p4;"
        )

    def text(self, **changes: str) -> str:
        """The kernel; ``changes`` replace parts by name."""
        parts = {
            "fill": _FILL, "store": _chunks(self.columns, "st", "%mine", "d"), "wait_st": WAIT_ST, "between": BARRIER,
            "mma": self.instruction, "commit": COMMIT, "poll": POLL, "fence": FENCE,
            "load": _chunks(self.columns, "ld", "%mine", "d"), "wait_ld": WAIT_LD, "end": TAIL,
        } | changes  # fmt: skip
        factor = _chunks(8, "st", "%mine+256", "factor") if self.in_tensor_memory else ""
        body = f"""{HEAD}
          ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; add.u32 %ta, %base, {256 + (self.lane << 16)};
          {parts["fill"]} {parts["store"]} {factor} {parts["wait_st"]}
          fence.proxy.async.shared::cta; {parts["between"]}
          @!%p0 bra $behind;
          {parts["mma"]}
          {parts["commit"]}
          $behind: {parts["poll"]} {parts["fence"]} {parts["load"]} {parts["end"]}"""
        names = [f".param .u64 {name}" for name in ("image", "d", "factor", "a", "b")]
        return kernel(body.replace("WAIT_LD", parts["wait_ld"]), ", ".join(names), target="sm_100a")

    def run(self, ptx: str | None = None, *, blocks: int = 1) -> tuple[Array, Array]:
        """Returns D, [blocks, 128 lanes, columns], and what it must be; lanes without a row keep what they had."""
        ptx = self.text() if ptx is None else ptx
        assemble(ptx)
        result = np.int32 if self.kind == "i8" else np.float32
        a = small_integers((self.rows, self.depth), self.types[0], 1)
        b = small_integers((self.columns, self.depth), self.types[1], 2)
        old = small_integers((blocks, 128, self.columns), "s8", 3).astype(result)
        shared = np.zeros(SHARED, np.uint8)
        descriptors: list[int] = []
        for matrix, start, span, transposed in zip((a, b), (0, B_START), self.spans, self.transposed, strict=True):
            data, leading, stride = image(matrix, span, transposed)
            shared[start : start + data.size] = data
            found = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | SWIZZLES[span] << 61
            descriptors.append(found - (1 << 64) if found >> 63 else found)
        factor = np.zeros((blocks, 128, 8), np.uint32)
        factor[:, self.lanes] = np.ascontiguousarray(a).view(np.uint32)
        gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
        addresses = [gpu.allocate(each.nbytes) for each in (shared, old, factor)]
        for address, data in zip(addresses, (shared, old, factor), strict=True):
            gpu.write(address, np.ascontiguousarray(data).view(np.uint8))
        gpu.launch(gpu.load(ptx).kernels["k"], [blocks], [128], [*addresses, *descriptors])
        sign = -1 if self.negated[0] != self.negated[1] else 1
        product = sign * (a.astype(np.float64) @ b.astype(np.float64).T)
        wanted = old.astype(np.float64)
        wanted[:, self.lanes] = product + (wanted[:, self.lanes] if self.adds else 0)
        return gpu.read(addresses[1], old.nbytes).view(result).reshape(old.shape), wanted


_FILL = f"""
  ld.param.u64 %x0, [image]; mul.wide.u32 %x3, %r0, 4; add.u64 %x4, %x0, %x3;
  mov.u32 %r4, tiles; shl.b32 %r2, %r0, 2; add.u32 %r4, %r4, %r2; mov.u32 %r3, 0;
  $fill: ld.global.u32 %r5, [%x4]; st.shared.u32 [%r4], %r5; add.u64 %x4, %x4, 512; add.u32 %r4, %r4, 512;
  add.u32 %r3, %r3, 512; setp.lt.u32 %p3, %r3, {SHARED}; @%p3 bra $fill;
"""


def _chunks(columns: int, way: str, place: str, parameter: str) -> str:
    """Moves rows of ``columns`` words between global memory and the lanes of all warps, eight at a time."""
    base, _, offset = place.partition("+")
    found = [f"ld.param.u64 %x1, [{parameter}]; mad.wide.u32 %x5, %row, {4 * columns}, %x1;"]
    for start in range(0, columns, 8):
        address = f"[{base}+{start + int(offset or 0)}]"
        words = [f".global.u32 [%x5+{4 * (start + number)}]" for number in range(8)]
        if way == "st":
            found += [f"ld.global.u32 %v{number}, {word[12:]};" for number, word in enumerate(words)]
            found.append(f"tcgen05.st.sync.aligned.32x32b.x8.b32 {address}, {registers(8)};")
        else:
            found += [f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(8)}, {address};", "WAIT_LD"]
            found += [f"st{word}, %v{number};" for number, word in enumerate(words)]
    return "\n".join(found)
