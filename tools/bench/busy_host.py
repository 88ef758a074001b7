"""A small network while other processes want the CPUs: lowerkit beside its peers, two threads each, as Markdown.

    python tools/bench/busy_host.py --competitors 0,2,8

Each contender is a process of its own; they take turns, so that only one runs at a time beside the competitors, which
do nothing but compute. Per turn one number is kept, the median of its calls; printed are the median over the turns,
their 10th and 90th percentile, and the 99th of all single calls.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CONTENDERS = ("lowerkit", "lowerkit, 1 thread", "onnxruntime", "openvino")
THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--competitors", default="0,2,8", help="numbers of competing processes")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="calls of one turn")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        serve(*arguments.contender)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_network(Path(folder))
        print("| competitors | " + " | ".join(CONTENDERS) + " |\n|---|" + "---|" * len(CONTENDERS), flush=True)
        for text in arguments.competitors.split(","):
            cells = measure(Path(folder), int(text), arguments.turns, arguments.calls)
            print(f"| {text} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\nMilliseconds: median (10th to 90th percentile of {arguments.turns} turns; 99th percentile of all calls). "
        f"{len(os.sched_getaffinity(0))} CPUs, {THREADS} threads, load before: {os.getloadavg()[0]:.1f}."
    )


def write_network(folder: Path) -> None:
    """Writes a network that takes 0.07 ms on one thread, as an artifact and as ONNX."""
    import torch
    from torch import nn

    import lowerkit

    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256)]
    module, x = nn.Sequential(*layers).eval(), torch.randn(4, 256)
    lowerkit.compile(module, (x,)).save(folder / "network.lk")
    torch.onnx.export(module, (x,), str(folder / "network.onnx"), dynamo=True, verbose=False)


def measure(folder: Path, competitors: int, turns: int, calls: int) -> list[str]:
    contenders = [_start("--contender", name, str(folder)) for name in CONTENDERS]
    for process in contenders:
        _read(process)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(competitors)]
    times: list[list[list[float]]] = [[] for _ in contenders]
    try:
        for turn in range(turns):
            for place in range(len(contenders)):
                index = (turn + place) % len(contenders)
                process = contenders[index]
                assert process.stdin is not None
                process.stdin.write(f"{calls}\n")
                process.stdin.flush()
                times[index].append(json.loads(_read(process)))
    finally:
        for process in [*others, *contenders]:
            process.kill()
            process.wait()
    return [_cell(values) for values in times]


def _cell(turns: Sequence[Sequence[float]]) -> str:
    medians = sorted(statistics.median(turn) for turn in turns)
    single = sorted(value for turn in turns for value in turn)
    low, high = medians[len(medians) // 10], medians[(9 * len(medians)) // 10]
    return f"{statistics.median(medians):.3f} ({low:.3f} to {high:.3f}; {single[(99 * len(single)) // 100]:.1f})"


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a contender ended early")
    return line


def serve(name: str, folder: str) -> None:
    """Answers each line, a number of calls, with their times in milliseconds."""
    run = _prepared(name, Path(folder))
    for _ in range(20):
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        times: list[float] = []
        for _ in range(int(line)):
            started = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - started) / 1e6)
        print(json.dumps(times), flush=True)


def _prepared(name: str, folder: Path) -> Callable[[], Any]:
    import numpy as np

    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    if name.startswith("lowerkit"):
        import lowerkit

        session = lowerkit.load(folder / "network.lk", threads=1 if name.endswith("1 thread") else THREADS)
        return lambda: session.run(x)
    from lowerkit.bench.peers import BenchModel, prepare_peer

    return prepare_peer(name, BenchModel(None, folder / "network.onnx", [x], ["x"], ((x,), {}), "f32", THREADS))


if __name__ == "__main__":
    main()
