"""What it takes to prove a certificate again, for few ranks and for many: a Llama by its shapes, without weights.

    python tools/bench/collective/certificate.py --ranks 4 --ranks 4096

Splits one model among each number of ranks along ``tp``, writes the certificate down, reads it and proves it again, as
``lowerkit verify --certificate-only`` does. Prints for each number of ranks the ops and collectives that were proved,
the bytes of the certificate, and the median, least and largest time of reading and proving it, in seconds.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from lowerkit.capture.load_model import capture_path  # noqa: E402
from lowerkit.passes.base import PassContext  # noqa: E402
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan  # noqa: E402
from lowerkit.passes.shard.shard_program import ShardProgram  # noqa: E402
from lowerkit.pipeline import pass_context, run_stages  # noqa: E402
from lowerkit.program.program import Program  # noqa: E402
from lowerkit.runtimes.mesh.structs import MeshAxis  # noqa: E402
from lowerkit.spmd.certificate.binding import read_certificate  # noqa: E402
from lowerkit.spmd.certificate.certificate import prove_again  # noqa: E402
from lowerkit.spmd.certificate.recorder import Recorder  # noqa: E402

LAYERS = 4
PLAN = (
    *(PlanEntry(f"*.{name}_proj", "column") for name in ("q", "k", "v", "gate", "up")),
    *(PlanEntry(f"*.{name}_proj", "row") for name in ("o", "down")),
    PlanEntry("*.embed_tokens", "vocabulary"),
    PlanEntry("*.lm_head", "vocabulary"),
)


def prefill() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A factory for ``--meta``: 4,096 heads, so that as many ranks can share them, and a prompt of 128 tokens."""
    spec = importlib.util.spec_from_file_location("llama405b", ROOT / "docs/distributed/llama405b.py")
    assert spec is not None
    assert spec.loader is not None
    shapes = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = shapes
    spec.loader.exec_module(shapes)
    sizes = shapes.Sizes(layers=LAYERS, hidden=8192, heads=4096, key_heads=4096, inner=12288, vocabulary=32000)
    model = shapes.Llama(sizes).eval().to(torch.bfloat16).requires_grad_(False)
    return model, (torch.zeros(1, 128, dtype=torch.int64), torch.arange(128))


def certificate_of(program: Program, ranks: int) -> bytes:
    """Splits a canonical program, which is not changed, and returns the certificate of that."""
    own = program.copy()
    recorder = Recorder(own.weights, own.signature)
    recorder.before(own.module)
    ShardProgram().run(own.module, PassContext(own.weights, sharding=ShardingPlan("tp", ranks, PLAN)))
    recorder.after(own.module, "tp", ranks)
    return msgspec.json.encode(recorder.certificate([MeshAxis("tp", ranks)]))


@click.command()
@click.option("--ranks", multiple=True, type=int, default=(4, 4096), show_default=True)
@click.option("--turns", default=5, show_default=True)
def main(ranks: Sequence[int], turns: int) -> None:
    """Time the proof of one model for several numbers of ranks, by turns."""
    program = capture_path(f"{__file__}:prefill", [], [], meta=True)
    run_stages(program, "canonical", pass_context(program))
    made = {count: certificate_of(program, count) for count in ranks}
    times: dict[int, list[float]] = {count: [] for count in ranks}
    for _ in range(turns):
        for count, data in made.items():
            started = time.perf_counter()
            prove_again(read_certificate(data))
            times[count].append(time.perf_counter() - started)
    for count, data in made.items():
        certificate, found = read_certificate(data), times[count]
        ops, collectives = len(certificate.graphs[-1].ops), len(certificate.meetings[0].meetings)
        click.echo(
            f"tp={count:<6} {ops} ops, {collectives} collectives, {len(data) / 1e3:.0f} kB: "
            f"median {statistics.median(found):.3f} s   min {min(found):.3f}   max {max(found):.3f}"
        )


if __name__ == "__main__":
    main()
