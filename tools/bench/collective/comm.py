"""Collectives beside Open MPI (native) and Gloo (through torch.distributed), taking turns in the same processes.

    python tools/bench/collective/comm.py --json comm.json --markdown comm.md --picture docs/results/collectives.svg

Needs mpicxx and mpirun (Debian: openmpi-bin, libopenmpi-dev); the columns of TCP, measured between two network
namespaces, need root and iproute2. A time is the slowest rank's, per operation; figures are
medians over the turns of all rounds, with the 99th percentile. Bus bandwidth is by the factors of nccl-tests.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "runtimes/native/collective"
sys.path.insert(0, str(ROOT))

from tests.support.faults import namespaces  # noqa: E402

MEMORY_LIMIT = 16 << 30  # of all buffers of all ranks


@dataclass
class Series:
    """Times of one engine, operation, rank count and size, in seconds."""

    engine: str
    operation: str
    ranks: int
    bytes: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(len(self.seconds) * 0.99))]

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second that each rank's link would carry."""
        factor = {"all_reduce": 2 * (self.ranks - 1) / self.ranks, "broadcast": 1.0}
        return self.bytes * factor.get(self.operation, (self.ranks - 1) / self.ranks) / self.median


def build(folder: Path) -> Path:
    """Returns the native benchmark, compiled as the wheel's library is."""
    program = folder / "comm_native"
    sources = [str(path) for path in sorted(SOURCES.rglob("*.cpp")) if path.parent.name != "bindings"]
    subprocess.run(
        ["mpicxx", "-std=c++17", "-O3", "-w", f"-I{SOURCES}", str(Path(__file__).with_name("comm_native.cpp")),
         *sources, "-pthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def sizes_for(ranks: int, largest: int) -> list[int]:
    """Returns 8 B to 1 GiB, as far as memory reaches."""
    sizes = [8, 16, 48, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20,
             256 << 20, 1 << 30]  # fmt: skip
    return [size for size in sizes if size <= largest and 4 * size * ranks <= MEMORY_LIMIT]


def native(program: Path, operation: str, ranks: int, sizes: list[int], turns: int) -> list[dict[str, object]]:
    """Runs the native benchmark once."""
    crowded = "1" if ranks > len(os.sched_getaffinity(0)) else "0"
    command = [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), "--mca", "mpi_yield_when_idle", crowded,
        str(program), operation, ",".join(map(str, sizes)), str(turns),
    ]  # fmt: skip
    return lines_of(command)


def through_torch(operation: str, ranks: int, sizes: list[int], turns: int) -> list[dict[str, object]]:
    """Runs the benchmark through torch.distributed once."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        *torch_program(operation, sizes, turns, "shm"),
    ]  # fmt: skip
    return lines_of(command)


def torch_program(operation: str, sizes: list[int], turns: int, transport: str) -> list[str]:
    """Returns the words that run one rank."""
    program = str(Path(__file__).with_name("comm_torch.py"))
    return [program, operation, ",".join(map(str, sizes)), str(turns), transport]


def between_namespaces(operation: str, sizes: list[int], turns: int) -> list[dict[str, object]]:
    """Runs the benchmark once through torch.distributed, by TCP between two network namespaces."""
    with namespaces.wire() as wire:
        ranks: list[subprocess.Popen[str]] = []
        for side in (0, 1):
            environment = {
                **os.environ, "MASTER_ADDR": wire.addresses[0], "MASTER_PORT": "29511", "RANK": str(side),
                "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": wire.devices[side],
            }  # fmt: skip
            command = [*wire.inside(side), sys.executable, *torch_program(operation, sizes, turns, "tcp")]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        printed = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise click.ClickException("a rank between network namespaces failed")
    lines = [json.loads(line) for line in printed[0].splitlines() if line.startswith("{")]
    return [{**line, "engine": str(line["engine"]).replace("torch", "tcp")} for line in lines]


def lines_of(command: list[str]) -> list[dict[str, object]]:
    """Returns the JSON lines that a command prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def in_units(seconds: float) -> str:
    """Returns microseconds or milliseconds."""
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def size_name(size: int) -> str:
    """Returns a size as people say it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def table(series: list[Series], bandwidth: dict[int, tuple[float, float]]) -> str:
    """Returns one Markdown table for each operation and rank count."""
    parts: list[str] = []
    for operation in dict.fromkeys(item.operation for item in series):
        for ranks in dict.fromkeys(item.ranks for item in series):
            chosen = [item for item in series if (item.operation, item.ranks) == (operation, ranks)]
            engines = list(dict.fromkeys(item.engine for item in chosen))
            if not chosen:
                continue
            parts += [f"\n{operation}, {ranks} ranks: median (99th percentile)", ""]
            parts += ["| bytes | " + " | ".join(engines) + " |", "| --- " * (len(engines) + 1) + "|"]
            for size in dict.fromkeys(item.bytes for item in chosen):
                row = {item.engine: item for item in chosen if item.bytes == size}
                cells = [
                    f"{in_units(row[engine].median)} ({in_units(row[engine].p99)})" if engine in row else ""
                    for engine in engines
                ]
                parts.append(f"| {size_name(size)} | " + " | ".join(cells) + " |")
    parts += ["", bounds(series, bandwidth)]
    return "\n".join(parts)


def bounds(series: list[Series], bandwidth: dict[int, tuple[float, float]]) -> str:
    """Returns how near large all_reduces come to what memory allows: the least bytes at the speed of a copy."""
    rows = ["| ranks | bytes | engine | bytes moved a rank | least time | measured | share |", "| --- " * 7 + "|"]
    for item in series:
        if item.operation != "all_reduce" or item.bytes < 1 << 20 or item.ranks not in bandwidth:
            continue
        if not item.engine.startswith("lowerkit"):
            continue
        core, memory = bandwidth[item.ranks]
        moved = 2.0 if "arena" in item.engine else 5 - 2 / item.ranks
        least = max(moved * item.bytes / core, item.ranks * moved * item.bytes / memory)
        rows.append(
            f"| {item.ranks} | {size_name(item.bytes)} | {item.engine} | {moved:.1f} n | {in_units(least)} | "
            f"{in_units(item.median)} | {least / item.median:.0%} |"
        )
    return "\n".join(rows)


def draw(series: list[Series], path: Path) -> None:
    """Draws time against size, one panel for each rank count of all_reduce."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lowerkit"
    import matplotlib.pyplot as plt

    reduces = [item for item in series if item.operation == "all_reduce"]
    counts = list(dict.fromkeys(item.ranks for item in reduces))
    figure, panels = plt.subplots(1, len(counts), figsize=(5 * len(counts), 4), squeeze=False, sharey=True)
    for panel, ranks in zip(panels[0], counts, strict=True):
        for engine in dict.fromkeys(item.engine for item in reduces):
            points = [
                (item.bytes, item.median * 1e6) for item in reduces if (item.engine, item.ranks) == (engine, ranks)
            ]
            if points:
                panel.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=engine)
        panel.set(title=f"all_reduce, {ranks} ranks", xlabel="bytes", ylabel="microseconds")
        panel.grid(visible=True, alpha=0.3)
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


@click.command()
@click.option("--operation", "operations", multiple=True, default=("all_reduce",), show_default=True)
@click.option("--ranks", multiple=True, type=int, default=(2, 4, 8), show_default=True)
@click.option("--largest", default=1 << 30, show_default=True, help="Bytes.")
@click.option("--turns", default=21, show_default=True, help="Samples of each engine and size in a round.")
@click.option("--rounds", default=2, show_default=True)
@click.option("--skip-torch", is_flag=True)
@click.option("--skip-native", is_flag=True)
@click.option("--skip-tcp", is_flag=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@click.option("--markdown", type=click.Path(path_type=Path))
@click.option("--picture", type=click.Path(path_type=Path))
def main(
    operations: tuple[str, ...], ranks: tuple[int, ...], largest: int, turns: int, rounds: int, skip_torch: bool,
    skip_native: bool, skip_tcp: bool, json_path: Path | None, markdown: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Measure collectives beside Open MPI and Gloo."""
    if not skip_tcp and (reason := namespaces.missing()):
        raise click.ClickException(f"no network namespaces: {reason}; --skip-tcp leaves their columns out")
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        program = None if skip_native else build(Path(folder))
        for _ in range(rounds):
            for operation in operations:
                for count in ranks:
                    sizes = sizes_for(count, largest)
                    if program:
                        lines += native(program, operation, count, sizes, turns)
                    if not skip_torch:
                        lines += through_torch(operation, count, sizes, turns)
                    if not skip_tcp and count == 2:
                        lines += between_namespaces(operation, sizes, turns)
    found: dict[tuple[object, ...], Series] = {}
    bandwidth: dict[int, tuple[float, float]] = {}
    for line in lines:
        if "engine" not in line:
            old = bandwidth.get(int(str(line["ranks"])), (0.0, 0.0))
            new = (float(str(line["core_bandwidth"])), float(str(line["memory_bandwidth"])))
            bandwidth[int(str(line["ranks"]))] = (max(old[0], new[0]), max(old[1], new[1]))
            continue
        key = (line["engine"], line["operation"], line["ranks"], line["bytes"])
        item = found.setdefault(key, Series(*key))  # type: ignore[arg-type]
        item.seconds += line["seconds"]  # type: ignore[operator]
    series = list(found.values())
    text = table(series, bandwidth)
    click.echo(text)
    if markdown:
        markdown.write_text(text + "\n")
    if json_path:
        json_path.write_text(json.dumps({"bandwidth": bandwidth, "series": lines}, indent=1))
    if picture:
        draw(series, picture)


if __name__ == "__main__":
    main()
