"""Two network namespaces with a wire between them, for partitions and lost packets. Needs root and iproute2.

The namespaces have no names. Each is held by a process that reads from a pipe of ours: however this process ends, by a
signal that nobody can catch as well, the pipe ends, the process with it, and with the last process the namespace.
"""

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
        holders: the processes that hold the namespaces, the near and the far one.
        devices: their ends of the wire.
        addresses: IPv4.
    """

    holders: tuple[int, int]
    devices: tuple[str, str]
    addresses: tuple[str, str]

    def inside(self, side: int) -> list[str]:
        """Returns the words that run a command in a namespace."""
        return ["nsenter", f"--net=/proc/{self.holders[side]}/ns/net"]

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
    for program in ("ip", "tc", "unshare", "nsenter"):
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
    with _namespace() as near, _namespace() as far:
        made = Wire((near, far), ("lkwire0", "lkwire1"), ("10.251.77.1", "10.251.77.2"))
        first, second = made.devices
        near_end = [first, "netns", str(near)]
        _run("ip", "link", "add", *near_end, "type", "veth", "peer", "name", second, "netns", str(far))
        for side in (0, 1):
            inside, device = made.inside(side), made.devices[side]
            _run(*inside, "ip", "address", "add", f"{made.addresses[side]}/30", "dev", device)
            for one in (device, "lo"):
                _run(*inside, "ip", "link", "set", one, "up")
        yield made


@contextmanager
def _namespace() -> Generator[int]:
    """Makes a namespace; gives the number of the process that holds it."""
    command = ["unshare", "--net", "sh", "-c", "echo there; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != b"there\n":
            raise subprocess.CalledProcessError(holder.wait(), command, stderr=holder.stderr.read().decode())
        try:
            yield holder.pid
        finally:
            holder.kill()


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20.0).stdout
