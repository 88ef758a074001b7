"""DDP training of a ResNet-18 on CIFAR-shaped random data: one process, and 2 and 4 ranks over gloo and lowerkit.

    python tools/bench/collective/training.py --runs 3

Every rank computes with one thread. An epoch is ``--images`` images in all, split over the ranks; the global batch
stays ``--batch``, so all runs take the same steps. Runs are interleaved. Printed are the median seconds of an epoch
(of the slowest rank, after a warm-up step), the speed-up over one process, and the last loss averaged over the ranks.
It differs between numbers of ranks: batch norms see a rank's share. Between gloo and lowerkit on more than two ranks it
differs by the order of sums, which batch norms of few images enlarge step by step; so a run of two steps of 32
images in float64 follows, whose losses must be equal to 1e-9.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        same = stride == 1 and channels_in == channels
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Returns the ResNet-18 for 32x32 images: a 3x3 stem without pooling, 11.2 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels_in = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def train(rank: int, size: int, backend: str, dtype: str, folder: str, images: int, batch: int) -> dict[str, float]:
    """Trains one epoch as one rank; returns its seconds and the mean of the ranks' last losses."""
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, dtype))
    torch.manual_seed(0)
    model = resnet18()
    if size > 1:
        dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(images, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (images,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    share = batch // size

    def step(start: int) -> torch.Tensor:
        own = slice(start + rank * share, start + (rank + 1) * share)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[own]), labels[own])
        loss.backward()
        optimizer.step()
        return loss.detach()

    loss = step(0)
    started = time.perf_counter()
    for start in range(0, images - batch + 1, batch):
        loss = step(start)
    result = torch.tensor([time.perf_counter() - started, float(loss)], dtype=torch.float64)
    if size > 1:
        slowest, total = result[:1].clone(), result[1:].clone()
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        dist.all_reduce(total)
        result = torch.cat([slowest, total / size])
        dist.destroy_process_group()
    return {"seconds": float(result[0]), "loss": float(result[1])}


def run(size: int, backend: str, images: int, batch: int, dtype: str = "float32") -> dict[str, float]:
    """Runs all ranks in processes of their own; returns rank 0's result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--images", str(images), "--batch", str(batch), "--place"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [*command, f"{rank}/{size}/{backend}/{dtype}", "--folder", folder],
                stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(size)
        ]  # fmt: skip
        outputs = [process.communicate(timeout=3600)[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"{size} ranks over {backend} failed")
    return json.loads(outputs[0].splitlines()[-1])


@click.command()
@click.option("--images", default=512, show_default=True, help="Images of an epoch.")
@click.option("--batch", default=128, show_default=True, help="Images of a step, over all ranks.")
@click.option("--runs", default=3, show_default=True)
@click.option("--ranks", default="1,2,4", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="JSON file of all results.")
@click.option("--place", hidden=True)
@click.option("--folder", hidden=True, default="")
def main(images: int, batch: int, runs: int, ranks: str, output: Path | None, place: str | None, folder: str) -> None:
    """Time an epoch over numbers of ranks and backends."""
    if place is not None:
        rank, size, backend, dtype = place.split("/")
        click.echo(json.dumps(train(int(rank), int(size), backend, dtype, folder, images, batch)))
        return
    sizes = [int(one) for one in ranks.split(",")]
    kinds = [(size, backend) for size in sizes for backend in (("gloo", "lowerkit") if size > 1 else ("alone",))]
    results: dict[tuple[int, str], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(runs):
        for size, backend in kinds:
            results[size, backend].append(run(size, backend, images, batch))
    seconds = {kind: statistics.median(one["seconds"] for one in found) for kind, found in results.items()}
    alone = seconds.get((1, "alone"))
    click.echo(f"ResNet-18, {images} images of 3x32x32, global batch {batch}, one thread a rank, {runs} runs")
    for size, backend in kinds:
        speed = f"{alone / seconds[size, backend]:.2f}x" if alone else ""
        loss = results[size, backend][0]["loss"]
        click.echo(f"{size} ranks  {backend:9} epoch {seconds[size, backend]:7.2f} s  {speed:6} loss {loss:.6f}")
    if output is not None:
        rows = [{"ranks": size, "backend": backend, "runs": found} for (size, backend), found in results.items()]
        output.write_text(json.dumps(rows, indent=1) + "\n")
    for size in sizes:
        if size > 1:
            gloo, ours = (run(size, backend, 64, 32, "float64")["loss"] for backend in ("gloo", "lowerkit"))
            click.echo(f"{size} ranks in float64: losses differ by {abs(gloo - ours):.1e}")
            if not abs(gloo - ours) <= 1e-9:
                raise SystemExit(f"the losses of {size} ranks over gloo and lowerkit differ")


if __name__ == "__main__":
    main()
