"""What a user waits for who compiles a model: whole `lowerkit compile` processes, cold and warm, interleaved.

    python tools/bench/compile_time.py --rounds 3

Writes the six models of tools/bench/models.py in three file forms first (minutes; kept in --folder), then takes each
model in each form (.pt2, TorchScript, ONNX and the factory, which builds the model too) in turn: cold with empty caches
of its own, warm with those that this left. Prints medians and the range of wall time, and beside them the CPU time of
the process and its workers, which a loaded machine changes less.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

TOOLS = Path(__file__).resolve().parent
MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
FORMS = ("pt2", "pt", "onnx", "factory")


@dataclass
class Samples:
    """Seconds of the runs of one model in one form: wall and CPU, by cache state."""

    wall: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    cpu: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, state: str, wall: float, cpu: float) -> None:
        self.wall.setdefault(state, []).append(wall)
        self.cpu.setdefault(state, []).append(cpu)

    def cells(self, state: str) -> list[str]:
        wall, cpu = self.wall[state], self.cpu[state]
        spread = f"{statistics.median(wall):.1f} ({min(wall):.1f}..{max(wall):.1f})"
        return [spread, f"{statistics.median(cpu):.1f} ({min(cpu):.1f}..{max(cpu):.1f})"]


def export(name: str, folder: Path) -> None:
    """Writes a model in its file forms, where they are not there yet."""
    if not (folder / f"{name}.npy").exists():
        script = [sys.executable, TOOLS / "export_forms.py", f"{TOOLS / 'models.py'}:{name}"]
        subprocess.run([*script, "--folder", folder, "--name", name], check=True, stdout=subprocess.DEVNULL)
        (folder / "x.npy").rename(folder / f"{name}.npy")


def compile_once(name: str, form: str, folder: Path, cache: Path) -> tuple[float, float]:
    """Returns wall and CPU seconds of one `lowerkit compile` process."""
    model = f"{TOOLS / 'models.py'}:{name}" if form == "factory" else str(folder / f"{name}.{form}")
    command = [
        str(Path(sys.executable).parent / "lowerkit"),
        "compile",
        model,
        "--quiet",
        "-o",
        str(cache / "model.lk"),
    ]
    if form == "pt":
        command += ["--input", f"x=@{folder / f'{name}.npy'}"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("models"), show_default=True)
@click.option("--models", default=",".join(MODELS), show_default=True)
@click.option("--forms", default=",".join(FORMS), show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(folder: Path, models: str, forms: str, rounds: int) -> None:
    """Time cold and warm compilations of the six models in all forms."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in models.split(","):
        export(name, folder)
    cases = [(name, form) for name in models.split(",") for form in forms.split(",")]
    samples = {case: Samples() for case in cases}
    for number in range(rounds):
        for case in cases:
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                for state in ("cold", "warm"):
                    wall, cpu = compile_once(*case, folder, Path(cache))
                    samples[case].add(state, wall, cpu)
                    title = f"round {number + 1} of {rounds}: {case[0]} {case[1]} {state}"
                    click.echo(f"{title}: {wall:.1f} s, CPU {cpu:.1f} s", err=True)
    click.echo(
        "| model | form | cold, s | cold CPU, s | warm, s | warm CPU, s |\n| --- | --- | --- | --- | --- | --- |"
    )
    for (name, form), found in samples.items():
        click.echo(f"| {' | '.join([name, form, *found.cells('cold'), *found.cells('warm')])} |")


if __name__ == "__main__":
    main()
