"""Two network namespaces with a wire between them, for partitions and lost packets. Needs root and iproute2."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

# A queue of a few packets at a rate that a burst exceeds: the rest of the burst is dropped.
_DROPPING = "tbf rate 100mbit burst 3200 limit 6400"


@dataclass(frozen=True)
class Wire:
    """Two namespaces and the addresses in them.

    Attributes:
        names: of the namespaces, the near and the far one.
        devices: their ends of the wire.
        addresses: IPv4.
    """

    names: tuple[str, str]
    devices: tuple[str, str]
    addresses: tuple[str, str]

    def inside(self, side: int) -> list[str]:
        """Returns the words that run a command in a namespace."""
        return ["ip", "netns", "exec", self.names[side]]

    def cut(self) -> list[str]:
        """Returns the command that cuts the wire, to be run in the far namespace."""
        return ["ip", "link", "set", self.devices[1], "down"]

    def lose_packets(self) -> None:
        """Makes both ends drop what exceeds a short queue."""
        for side in (0, 1):
            _run(*self.inside(side), "tc", "qdisc", "replace", "dev", self.devices[side], "root", *_DROPPING.split())

    def lost(self) -> int:
        """Returns how many packets were dropped."""
        shown = [_run(*self.inside(side), "tc", "-s", "qdisc", "show", "dev", self.devices[side]) for side in (0, 1)]
        return sum(int(count) for text in shown for count in re.findall(r"dropped (\d+)", text))


def missing() -> str | None:
    """Returns why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    try:
        with wire() as made:
            made.lose_packets()
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return None


@contextmanager
def wire() -> Generator[Wire]:
    """Makes two namespaces and the wire; deletes them at the end."""
    mark = f"lk{os.getpid():x}"
    made = Wire((f"{mark}n", f"{mark}f"), (f"{mark}vn", f"{mark}vf"), ("10.251.77.1", "10.251.77.2"))
    try:
        for name in made.names:
            _run("ip", "netns", "add", name)
        near, far = made.names
        first, second = made.devices
        _run("ip", "link", "add", first, "netns", near, "type", "veth", "peer", "name", second, "netns", far)
        for side in (0, 1):
            inside, device = made.inside(side), made.devices[side]
            _run(*inside, "ip", "address", "add", f"{made.addresses[side]}/30", "dev", device)
            for one in (device, "lo"):
                _run(*inside, "ip", "link", "set", one, "up")
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20.0).stdout
