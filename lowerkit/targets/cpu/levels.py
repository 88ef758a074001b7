"""CPU levels: what a kernel may use, under names that do not depend on the machine that compiled it.

A level is a named, closed set of features. ``host`` is not a level: it resolves to the widest level whose features
the machine has, so that two machines that resolve alike write the same bytes, and an artifact always states a level
that another machine can be checked against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lowerkit.errors import UnsupportedError
from lowerkit.runtimes import _native

# The psABI level x86-64-v3, in the spelling of LLVM's feature map.
_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ZEN4 = (*_V4, "avx512vnni", "avx512bf16")
_BEYOND_ZEN4 = (
    "sse4a", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512vpopcntdq", "avx512ifma", "gfni", "sha", "vaes",
    "vpclmulqdq",
)  # fmt: skip
"""What LLVM takes for granted on the processor znver4, and Intel's processors with the features of the level lack."""
_SAPPHIRE_RAPIDS = (*_ZEN4, "avx512fp16", "amx-tile", "amx-int8", "amx-bf16")


@dataclass(frozen=True)
class CpuFeatures:
    """What the kernels of one level may use.

    Attributes:
        name: the level, such as ``x86-64-v4``.
        vector_bits: width of the widest vector register.
        fma: fused multiply-add.
        avx512_vnni: int8 dot products on 512-bit vectors.
        avx512_bf16: bf16 conversions and dot products on 512-bit vectors.
        avx512_fp16: f16 arithmetic on 512-bit vectors.
        amx: tile matrix multiplication (int8 and bf16).
        llvm_cpu: the processor LLVM schedules for.
        llvm_features: the feature string handed to LLVM next to ``llvm_cpu``.
        required: the level's features in LLVM's spelling, checked when an artifact is loaded.
    """

    name: str
    vector_bits: int
    fma: bool
    avx512_vnni: bool
    avx512_bf16: bool
    avx512_fp16: bool
    amx: bool
    llvm_cpu: str
    llvm_features: str
    required: tuple[str, ...]

    @property
    def vector_registers(self) -> int:
        """Returns the number of vector registers: what bounds a register tile."""
        return 32 if self.vector_bits == 512 else 16

    def lanes(self, element_bits: int) -> int:
        """Returns how many elements of ``element_bits`` one vector register holds."""
        return self.vector_bits // element_bits


def _level(name: str, features: tuple[str, ...], beyond: tuple[str, ...] = ()) -> CpuFeatures:
    """Makes a level; ``beyond`` are features of the processor of that name that are no part of the level."""
    wide = "avx512f" in features
    enabled = [f"+{feature}" for feature in features] + [f"-{feature}" for feature in beyond]
    if wide:
        # LLVM's generic levels prefer 256-bit vectors, out of caution about the clocks of the first AVX-512 parts.
        enabled.append("-prefer-256-bit")
    return CpuFeatures(
        name=name,
        vector_bits=512 if wide else 256,
        fma="fma" in features,
        avx512_vnni="avx512vnni" in features,
        avx512_bf16="avx512bf16" in features,
        avx512_fp16="avx512fp16" in features,
        amx="amx-bf16" in features,
        llvm_cpu=name,
        llvm_features=",".join(enabled),
        required=tuple(sorted(features)),
    )


# Narrowest first; `host` takes the last one whose features are all there.
_LEVELS: dict[str, tuple[CpuFeatures, tuple[str, ...]]] = {
    "x86-64-v3": (_level("x86-64-v3", _V3), _V3),
    "x86-64-v4": (_level("x86-64-v4", _V4), _V4),
    "znver4": (_level("znver4", _ZEN4, _BEYOND_ZEN4), _ZEN4),
    "sapphirerapids": (_level("sapphirerapids", _SAPPHIRE_RAPIDS), _SAPPHIRE_RAPIDS),
}


LEVELS: tuple[str, ...] = tuple(_LEVELS)
"""The named levels, narrowest first (``host`` is not among them)."""


@lru_cache(maxsize=1)
def _host() -> frozenset[str]:
    """What this machine's processor and kernel offer, in LLVM's spelling: the runtime that will load the artifact asks
    the same question of the same code."""
    return frozenset(_native.cpu_features())


def host_features() -> CpuFeatures:
    """Returns the widest level that this machine has.

    Raises:
        UnsupportedError: LK4003, the machine is below the narrowest level.
    """
    fitting = [level for level, needed in _LEVELS.values() if _host().issuperset(needed)]
    if not fitting:
        missing = ", ".join(sorted(set(_V3) - _host()))
        raise UnsupportedError(
            "LK4003",
            f"this machine is below x86-64-v3, the narrowest CPU level: it lacks {missing}",
            hint="name the level of the machine that will run the artifact with --target cpu:LEVEL",
        )
    return fitting[-1]


def cpu_features(name: str = "host") -> CpuFeatures:
    """Returns the level called ``name``; ``host`` is the widest level that this machine has.

    Raises:
        UnsupportedError: LK4003, the name is unknown, or ``host`` lacks the narrowest level.
    """
    if name == "host":
        return host_features()
    if name not in _LEVELS:
        known = ", ".join(("host", *LEVELS))
        raise UnsupportedError(
            "LK4003",
            f"the CPU level {name!r} is unknown; known are {known}",
            hint="name one of them: --target cpu:LEVEL",
        )
    return _LEVELS[name][0]


def runs_on_host(name: str) -> bool:
    """Returns whether this machine can run kernels of the level called ``name``."""
    return _host().issuperset(_LEVELS[cpu_features(name).name][1])
