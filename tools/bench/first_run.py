"""Load and first run in fresh processes: what a user waits for who starts a program with an artifact.

    python tools/bench/first_run.py model.lk --runs 5

Prints medians and spread, in milliseconds: ``import`` of the runtime (numpy included), ``load`` of the artifact with
its checksums, the ``first`` run (page faults and memory plan included) and the ``second``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import click

_CHILD = """
import json, sys, time
started = time.perf_counter()
import numpy as np
from lowerkit.runtimes.session import load
imported = time.perf_counter()
session = load(sys.argv[1])
loaded = time.perf_counter()
generator = np.random.default_rng(0)
inputs = []
for spec in session.signature.inputs:
    if spec.dtype in ("f32", "f64", "f16"):
        inputs.append(generator.standard_normal(spec.shape).astype({"f32": "f4", "f64": "f8", "f16": "f2"}[spec.dtype]))
    else:
        inputs.append(np.ones(spec.shape, {"i64": "i8", "i32": "i4", "i1": "?"}[spec.dtype]))
ready = time.perf_counter()
session.run(*inputs)
first = time.perf_counter()
session.run(*inputs)
second = time.perf_counter()
seconds = {"import": imported - started, "load": loaded - imported, "first": first - ready, "second": second - first}
print(json.dumps(seconds))
"""


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path, exists=True))
@click.option("--runs", default=5, show_default=True)
def main(artifact: Path, runs: int) -> None:
    """Time load and first run of ARTIFACT (static shapes) in fresh processes."""
    samples: dict[str, list[float]] = {}
    for _ in range(runs):
        result = subprocess.run(
            [sys.executable, "-c", _CHILD, str(artifact)], capture_output=True, text=True, check=True
        )
        for name, seconds in json.loads(result.stdout).items():
            samples.setdefault(name, []).append(seconds * 1e3)
    samples["load + first"] = [load + first for load, first in zip(samples["load"], samples["first"], strict=True)]
    for name, values in samples.items():
        click.echo(
            f"{name:12} median {statistics.median(values):8.1f} ms   min {min(values):8.1f}   max {max(values):8.1f}"
        )


if __name__ == "__main__":
    main()
