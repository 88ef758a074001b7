"""The levels of the CUDA target: compute capabilities, and the PTX version that each needs at least."""

from __future__ import annotations

# Level -> version of PTX: the oldest that knows it, so that old drivers take the text too; 7.0 is the least.
PTX_VERSIONS: dict[str, int] = {
    "sm_80": 70,
    "sm_86": 71,
    "sm_87": 74,
    "sm_89": 78,
    "sm_90": 78,
    "sm_100": 86,
    "sm_103": 88,
    "sm_120": 87,
}
LEVELS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
