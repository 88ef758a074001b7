"""A conformance suite whose cases pass, are rejected, give wrong results, crash, hang and ask for too much memory."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from lowerkit.conformance.suite import Case, CaseReport, WrongResultError
from lowerkit.errors import PassError, UnsupportedError

CASES = [
    Case(name, "planted")
    for name in ("pass", "reject", "wrong", "segfault", "exit", "internal", "raise", "hang", "memory", "print", "last")
]


class PlantedSuite:
    def run(self, name: str) -> CaseReport:
        match name:
            case "reject":
                raise UnsupportedError("LK4001", "1 op is not supported", details=["aten.foo"])
            case "wrong":
                raise WrongResultError("3 elements\ndiffer")
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os.write(2, b"LLVM ERROR: planted\n")
                os._exit(9)
            case "internal":
                raise PassError("LK3001", "a pass failed")
            case "raise":
                raise KeyError("planted")
            case "hang":
                time.sleep(1000)
            case "memory":
                np.ones(1 << 31).sum()
            case "print":
                print("not a message")
            case _:
                pass
        return CaseReport([f"process {os.getpid()}"])


def make_suite(argument: str) -> PlantedSuite:
    if argument == "broken":
        raise RuntimeError("planted: no suite")
    return PlantedSuite()
