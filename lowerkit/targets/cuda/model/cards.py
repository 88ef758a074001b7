"""The cards that estimates are made for: what NVIDIA's data sheets and programming guide say of each.

Sources
    data sheets of the A100 80GB SXM, H100 SXM, H200 SXM, L40S and HGX B200: operations without sparsity, memory, clock
    white papers of the architectures: SMs, L2, bytes per clock
    CUDA C++ programming guide, technical specifications per compute capability: registers, shared memory, warps, blocks

What is not in a data sheet is a measured share of it: a matrix product of bf16 at 8192 x 8192 x 8192 reached
790 TFLOP/s of 989 on an H200, and a copy 4.3 TB/s of 4.8, read and written together. Both shares are taken for all
cards.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MATRIX_SHARE = 790 / 989.4
MEMORY_SHARE = 4.3 / 4.8


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One card.

    Attributes:
        name: as ``--card`` takes it; title: for people.
        level: compute capability, such as ``sm_90``.
        sms: streaming multiprocessors.
        clock: at which the matrix rates hold, Hz.
        matrix: operations per second of the tensor cores by kind of element: ``bf16``, ``tf32``, ``int8``, ``fp8``,
            ``f64``; f16 is as fast as bf16. A kind that is left out has no tensor cores.
        old_matrix_share: what ``mma.sync`` reaches of ``matrix``, where wider instructions are the fast ones.
        f32, f64: operations per second without tensor cores.
        memory: bytes per second of device memory.
        l2: bytes of the L2 cache, and l2_clock: bytes that it delivers to all SMs in a clock.
        shared, block_shared: bytes of shared memory of an SM, and those that one block may have.
        registers: of an SM, 32 bits each.
        warps, blocks: that an SM holds at most.
        launch: seconds between two kernels of a CUDA graph.
    """

    name: str
    title: str
    level: str
    sms: int
    clock: float
    matrix: Mapping[str, float]
    old_matrix_share: float = 1.0
    f32: float
    f64: float
    memory: float
    l2: int
    l2_clock: int = 5120
    shared: int
    block_shared: int
    registers: int = 65536
    warps: int = 64
    blocks: int = 32
    launch: float = 1e-6

    def peak(self, kind: str) -> float:
        """Returns operations per second for a kind of arithmetic: ``f32`` and ``f64`` are those without tensor cores.

        Raises:
            ValueError: the card has no such arithmetic.
        """
        # Products of f64 are there on every card; one without tensor cores for them makes them without.
        rates = {"f32": self.f32, "f64": self.f64, "matrix f64": self.f64}
        rates |= {f"matrix {name}": rate for name, rate in self.matrix.items()}
        if kind not in rates:
            raise ValueError(f"{self.title} has no arithmetic of {kind}; there is {', '.join(rates)}")
        return rates[kind]


_HOPPER = {"bf16": 989.4e12, "tf32": 494.7e12, "int8": 1978.9e12, "fp8": 1978.9e12, "f64": 66.9e12}

A100 = Card(
    name="a100", title="A100 SXM 80GB", level="sm_80", sms=108, clock=1.41e9,
    matrix={"bf16": 312e12, "tf32": 156e12, "int8": 624e12, "f64": 19.5e12},
    f32=19.5e12, f64=9.7e12, memory=2.039e12, l2=40 << 20, shared=164 << 10, block_shared=163 << 10,
)  # fmt: skip
# The rates of the data sheet are those of 1.83 GHz. mma.sync reached 62% of wgmma in published microbenchmarks.
H100 = Card(
    name="h100", title="H100 SXM", level="sm_90", sms=132, clock=1.83e9, matrix=_HOPPER, old_matrix_share=0.62,
    f32=66.9e12, f64=33.5e12, memory=3.35e12, l2=50 << 20, shared=228 << 10, block_shared=227 << 10,
)  # fmt: skip
H200 = Card(
    name="h200", title="H200 SXM", level="sm_90", sms=132, clock=1.83e9, matrix=_HOPPER, old_matrix_share=0.62,
    f32=66.9e12, f64=33.5e12, memory=4.8e12, l2=50 << 20, shared=228 << 10, block_shared=227 << 10,
)  # fmt: skip
# 2.0 TB/s per GHz of L2 was measured by others on the same chip; the white paper has no figure.
L40S = Card(
    name="l40s", title="L40S", level="sm_89", sms=142, clock=2.52e9,
    matrix={"bf16": 362e12, "tf32": 183e12, "int8": 733e12, "fp8": 733e12},
    f32=91.6e12, f64=1.43e12, memory=0.864e12, l2=96 << 20, l2_clock=2048, shared=100 << 10, block_shared=99 << 10,
    warps=48, blocks=24,
)  # fmt: skip
# An eighth of an HGX B200. mma.sync runs at the width of Ampere's, a quarter of tcgen05's.
B200 = Card(
    name="b200", title="B200 (HGX)", level="sm_100", sms=148, clock=1.86e9,
    matrix={"bf16": 2250e12, "tf32": 1125e12, "int8": 4500e12, "fp8": 4500e12, "f64": 37e12}, old_matrix_share=0.25,
    f32=75e12, f64=37e12, memory=7.7e12, l2=126 << 20, l2_clock=10240, shared=228 << 10, block_shared=227 << 10,
)  # fmt: skip

CARDS: Mapping[str, Card] = {card.name: card for card in (A100, H100, H200, L40S, B200)}

# Level -> the card that its code is planned and shown for where none is named. Limits of a block are those of the
# level in each: sm_86, sm_89 and sm_120 have 99 KiB, sm_80 and sm_87 163, sm_90 and sm_100 227.
_LEVEL_CARDS: Mapping[str, Card] = {
    "sm_80": A100, "sm_86": L40S, "sm_87": A100, "sm_89": L40S, "sm_90": H200, "sm_100": B200, "sm_103": B200,
    "sm_120": L40S,
}  # fmt: skip


def card_of(level: str) -> Card:
    """Returns the card that stands for a level.

    Raises:
        ValueError: the target has no such level.
    """
    if level not in _LEVEL_CARDS:
        raise ValueError(f"there is no card for {level!r}; the levels are {', '.join(_LEVEL_CARDS)}")
    return _LEVEL_CARDS[level]
