"""What a launch is told of each buffer: apart from the simulator, so that a card's driver does not load that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchBuffer:
    """An argument of a launch: ``size`` bytes at ``address``, which is all that the kernel may touch there.

    ``name`` is what messages call it.
    """

    address: int
    size: int
    name: str
    writable: bool = True
