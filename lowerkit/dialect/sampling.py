"""How PyTorch's resizing operators sample, by name: what they compute is said once, for open extents and others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """The attributes of ``lk.resize`` that an operator stands for."""

    mode: str
    coordinates: str
    rounding: str = "floor"
    has_align_corners: bool = False
    exact_ratios: tuple[int, ...] = ()
    """Where the sizes have one of these ratios, PyTorch heeds no factor; its kernels differ in this."""


_NEAREST = Sampling("nearest", "asymmetric")
# floor((o + 0.5) / scale) is the half-pixel position, rounded with ties upwards.
_NEAREST_EXACT = Sampling("nearest", "half_pixel", "round_prefer_ceil")
_LINEAR = Sampling("linear", "half_pixel", has_align_corners=True, exact_ratios=(1,))

SAMPLINGS: dict[str, Sampling] = {
    **{f"upsample_nearest{count}d": _NEAREST for count in (1, 2, 3)},
    **{f"_upsample_nearest_exact{count}d": _NEAREST_EXACT for count in (1, 2, 3)},
    "upsample_nearest2d": Sampling("nearest", "asymmetric", exact_ratios=(1, 2)),
    "upsample_linear1d": _LINEAR,
    "upsample_bilinear2d": _LINEAR,
    "upsample_trilinear3d": _LINEAR,
    "upsample_bicubic2d": Sampling("cubic", "half_pixel", has_align_corners=True),
}
"""By the name of an ATen operator; each has the overloads ``default``, with a factor for each dim, and ``vec``."""
