"""A model under Ray Serve: requests a second and their times, the artifact beside eager PyTorch in the same deployment.

    python tools/bench/serving/serve.py --model bert_base --tokens 32 --clients 8 --turns 3 --seconds 5

Both are served by one replica of one thread, with the same gateway, batching and protocol; what runs a batch differs.
Clients ask again as soon as they are answered; the two take turns. Every answer is compared with eager's alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import click
import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models

import lowerkit
from lowerkit.runtimes.arguments import collect
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.cpu.requirements import choose_program

MOST_ROWS = 16
TOLERANCE = 1e-3


class Eager:
    """Eager PyTorch as what a replica runs: the signature is the artifact's, the model is made anew."""

    def __init__(self, path: Path, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        artifact = open_artifact(path)
        self.manifest, self.program = artifact.manifest, choose_program(artifact.manifest)
        artifact.close()
        name = path.stem.removeprefix("eager-")
        self._module = models.full(name)[0].eval()

    def collect(self, *inputs: Any, **named: Any) -> list[Any]:
        """Returns inputs in the order of the signature."""
        return collect(self.program.signature, inputs, named)

    def run(self, *inputs: Any) -> list[Any]:
        """Runs the model once."""
        import torch

        with torch.inference_mode():
            result = self._module(*(torch.from_numpy(np.ascontiguousarray(one)) for one in inputs))
        return [one.numpy() for one in (result if isinstance(result, tuple) else (result,))]


def load_eager(path: Path, threads: int) -> Eager:
    """Returns eager PyTorch for an artifact called eager-MODEL.lk."""
    return Eager(path, threads)


def drive(
    url: str, name: str, inputs: list[Any], expected: list[Any], clients: int, seconds: float
) -> tuple[list[float], float]:
    """Returns the seconds of each request, and of all; none begins after ``seconds``. Fails where one is wrong."""
    times: list[float] = []
    wrong: list[str] = []
    begin = time.monotonic()
    end = begin + seconds

    def client(number: int) -> None:
        turn = number
        while time.monotonic() < end and not wrong:
            turn += clients
            x, y = inputs[turn % len(inputs)], expected[turn % len(inputs)]
            tensor = {"name": name, "datatype": "INT64", "shape": x.shape, "parameters": {"binary_data_size": x.nbytes}}
            head = msgspec.json.encode({"inputs": [tensor], "parameters": {"binary_data_output": True}})
            headers = {"Inference-Header-Content-Length": str(len(head))}
            start = time.monotonic()
            with urlopen(Request(url, head + x.tobytes(), headers), timeout=60) as reply:
                length, body = int(reply.headers["Inference-Header-Content-Length"]), reply.read()
            times.append(time.monotonic() - start)
            found = np.frombuffer(body[length:], np.float32).reshape(y.shape)
            if np.abs(found - y).max() > TOLERANCE * np.abs(y).max():
                wrong.append(f"request {turn}: off by {np.abs(found - y).max()}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if wrong:
        raise click.ClickException(wrong[0])
    return times, time.monotonic() - begin


@click.command()
@click.option("--model", default="bert_base", show_default=True, help="Of tools/bench/models.py, of token ids.")
@click.option("--tokens", default=32, show_default=True)
@click.option("--clients", default=8, show_default=True)
@click.option("--turns", default=3, show_default=True, help="Of each; the two take turns.")
@click.option("--seconds", default=5.0, show_default=True, help="Of a turn.")
@click.option("--port", default=8123, show_default=True)
def main(model: str, tokens: int, clients: int, turns: int, seconds: float, port: int) -> None:
    """Serves the model both ways and prints what clients see."""
    import ray
    import torch
    from ray import serve
    from torch.export import Dim

    from lowerkit.serving import deployment

    module = models.full(model)[0].eval()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randint(0, 1000, (1, tokens), generator=generator) for _ in range(32)]
    with torch.inference_mode():
        expected = [module(x) for x in inputs]
    expected = [(one[0] if isinstance(one, tuple) else one).numpy() for one in expected]
    compiled = lowerkit.compile(
        module, [torch.cat(inputs[:2])], dynamic_shapes=({0: Dim("batch", min=1, max=MOST_ROWS)},)
    )
    with tempfile.TemporaryDirectory() as folder:
        ways = {"lowerkit": Path(folder) / f"{model}.lk", "eager": Path(folder) / f"eager-{model}.lk"}
        for path in ways.values():
            compiled.save(path)
        os.environ["PYTHONPATH"] = str(Path(models.__file__).parent)  # where the replicas find the model
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        try:
            urls: dict[str, str] = {}
            for way, path in ways.items():
                loader: dict[str, Any] = {} if way == "lowerkit" else {"loader": load_eager}
                application = deployment(path, name=model, max_batch=MOST_ROWS, threads=1, **loader)
                serve.run(application, name=way, route_prefix=f"/{way}")
                urls[way] = f"http://127.0.0.1:{port}/{way}/v2/models/{model}/infer"
            name = compiled.runner.signature.inputs[0].name
            arrays = [x.numpy() for x in inputs]
            for url in urls.values():
                drive(url, name, arrays, expected, clients, 1.0)
            found: dict[str, list[tuple[list[float], float]]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, url in urls.items():
                    found[way].append(drive(url, name, arrays, expected, clients, seconds))
        finally:
            serve.shutdown()
            ray.shutdown()
    for way, rounds in found.items():
        rates = [len(times) / taken for times, taken in rounds]
        times = sorted(1e3 * one for round_times, _ in rounds for one in round_times)
        print(
            f"{way:8}  {statistics.median(rates):7.1f} requests/s ({min(rates):.1f} to {max(rates):.1f}), "
            f"median {times[len(times) // 2]:.1f} ms, p99 {times[int(0.99 * len(times))]:.1f} ms, {len(times)} requests"
        )


if __name__ == "__main__":
    main()
