"""A model of 70 billion parameters sized without its weights: time and memory of one `lowerkit inspect --meta`.

    python tools/bench/meta_model.py

`llama_70b` has the shapes of Llama 3 70B in bf16: 141 GB of weights, of which nothing is allocated.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import click
import torch


class Logits(torch.nn.Module):
    """A Llama that returns its logits as a plain tensor."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=layers,
            num_attention_heads=64,
            num_key_value_heads=8,
            vocab_size=128256,
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )
        self.model = LlamaForCausalLM(config)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Returns bf16[batch, length, 128256] for token ids i64[batch, length]."""
        return self.model(input_ids=input_ids, use_cache=False).logits


def llama_70b() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A factory for `lowerkit inspect --meta`: 128 tokens."""
    return Logits(80).eval().to(torch.bfloat16), (torch.zeros(1, 128, dtype=torch.int64),)


@click.command()
@click.option("--factory", default="llama_70b", show_default=True)
def main(factory: str) -> None:
    """Size the model in a process of its own; print what it needs, and what sizing it took."""
    command = [str(Path(sys.executable).parent / "lowerkit"), "inspect", "--meta", f"{__file__}:{factory}", "--json"]
    started = time.perf_counter()
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    totals = json.loads(result.stdout)["totals"]
    click.echo("| weights, GB | activations, MB | TFLOP | seconds | CPU seconds | peak memory, GB |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    click.echo(
        f"| {totals['weight_bytes'] / 1e9:.1f} | {totals['arena_bytes'] / 1e6:.1f} | {totals['flops'] / 1e12:.1f} "
        f"| {seconds:.1f} | {usage.ru_utime + usage.ru_stime:.1f} | {usage.ru_maxrss / 1e6:.2f} |"
    )


if __name__ == "__main__":
    main()
