"""Our sharding rules beside DTensor's own strategies: every disagreement, as a table.

    python tools/sharding_rules.py [--markdown FILE]

Each case is an op of PyTorch on two ranks, with each way of holding each tensor: whole, or split along one dimension.
DTensor runs it on a mesh that communicates nothing and counts the collectives that it wanted; our rules are asked about
the ops that lowerkit makes of it. They agree where both move nothing and hold the result alike, or both move something.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as nnf
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import Partial as DPartial
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.passes.shard.loops.table import nest_of
from lowerkit.passes.shard.rules import placed
from lowerkit.passes.shard.shardings import WHOLE, Partial, Sharding, Split

RANKS = 2

Function = Callable[..., torch.Tensor]
CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "add": (torch.add, ((4, 6), (4, 6))),
    "add, broadcast": (torch.add, ((4, 6), (6,))),
    "mul by a column": (torch.mul, ((4, 6), (4, 1))),
    "gelu": (nnf.gelu, ((4, 6),)),
    "relu": (torch.relu, ((4, 6),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), ((4, 6), (4, 6))),
    "mm": (torch.mm, ((4, 8), (8, 6))),
    "bmm": (torch.bmm, ((2, 4, 8), (2, 8, 6))),
    "matmul, batches on the left": (torch.matmul, ((2, 4, 8), (8, 6))),
    "linear": (nnf.linear, ((4, 8), (6, 8))),
    "softmax": (lambda x: torch.softmax(x, -1), ((4, 6),)),
    "layer_norm": (lambda x, w, b: nnf.layer_norm(x, (6,), w, b), ((4, 6), (6,), (6,))),
    "rms_norm": (lambda x, w: nnf.rms_norm(x, (6,), w), ((4, 6), (6,))),
    "sum of one dimension": (lambda x: x.sum(1), ((4, 6),)),
    "sum of all": (lambda x: x.sum(), ((4, 6),)),
    "mean": (lambda x: x.mean(1), ((4, 6),)),
    "amax": (lambda x: x.amax(1), ((4, 6),)),
    "amin": (lambda x: x.amin(1), ((4, 6),)),
    "cumsum": (lambda x: x.cumsum(1), ((4, 6),)),
    "transpose": (lambda x: x.transpose(0, 1).contiguous(), ((4, 6),)),
    "permute": (lambda x: x.permute(2, 0, 1).contiguous(), ((2, 4, 6),)),
    "reshape that joins": (lambda x: x.reshape(8, 6), ((2, 4, 6),)),
    "reshape that splits": (lambda x: x.reshape(2, 2, 6), ((4, 6),)),
    "unsqueeze": (lambda x: x.unsqueeze(1), ((4, 6),)),
    "squeeze": (lambda x: x.squeeze(1), ((4, 1, 6),)),
    "expand": (lambda x: x.expand(4, 6).contiguous(), ((1, 6),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((4, 6), (4, 6))),
    "stack": (lambda x, y: torch.stack([x, y]), ((4, 6), (4, 6))),
    "slice": (lambda x: x[:, 1:3].contiguous(), ((4, 6),)),
    "select": (lambda x: x[:, 1].contiguous(), ((4, 6),)),
    "pad": (lambda x: nnf.pad(x, (1, 1)), ((4, 6),)),
    "flip": (lambda x: x.flip(1), ((4, 6),)),
    "topk": (lambda x: x.topk(2, 1).values, ((4, 6),)),
    "sort": (lambda x: x.sort(1).values, ((4, 6),)),
    "conv2d": (lambda x, w: nnf.conv2d(x, w, padding=1), ((2, 4, 6, 6), (6, 4, 3, 3))),
    "max_pool2d": (lambda x: nnf.max_pool2d(x, 2), ((2, 4, 6, 6),)),
    "avg_pool2d": (lambda x: nnf.avg_pool2d(x, 2), ((2, 4, 6, 6),)),
    "interpolate": (lambda x: nnf.interpolate(x, scale_factor=2.0), ((2, 4, 6, 6),)),
    "attention": (nnf.scaled_dot_product_attention, ((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8))),
    "tril": (torch.tril, ((4, 4),)),
    "to bf16": (lambda x: x.to(torch.bfloat16), ((4, 6),)),
}  # fmt: skip
"""The op, and the shapes of its tensors."""


@dataclass(frozen=True)
class Answer:
    """What somebody says of one way of holding the operands: None as ``result`` where something has to be moved."""

    result: str | None
    why: str = ""

    def __str__(self) -> str:
        return self.why or self.result or "moves"


class _Op(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


def ways(shapes: Sequence[tuple[int, ...]]) -> list[tuple[Sharding, ...]]:
    """Returns each way of holding tensors of these shapes, but that all are whole."""
    own = [[WHOLE, *(Split(axis) for axis, extent in enumerate(shape) if extent % RANKS == 0)] for shape in shapes]
    return [way for way in itertools.product(*own) if any(isinstance(each, Split) for each in way)]


def ours(function: Function, shapes: Sequence[tuple[int, ...]], way: Sequence[Sharding]) -> Answer:
    """Asks our rules."""
    program = capture(_Op(function).eval(), tuple(torch.randn(shape) for shape in shapes))
    lower_program(program, "canonical", CompileOptions())
    block = main_block(program.module)
    held: dict[Any, Sharding] = dict(zip(block.arguments, way, strict=True))
    for op in operations(block):
        given = [held.get(operand, WHOLE) for operand in op.operands]
        if op.name == "func.return":
            return Answer(str(given[0]))
        if all(each == WHOLE for each in given):
            continue
        nest = nest_of(op)
        found = None if nest is None else placed(op, nest, given, RANKS)
        if found is None:
            return Answer(None)
        pairs = zip(op.operands, given, found.operands, strict=True)
        if any(had not in (wanted, WHOLE) for _, had, wanted in pairs):
            return Answer(None)
        held.update(zip(op.results, found.results, strict=True))
    raise AssertionError("a function returns")


def theirs(function: Function, shapes: Sequence[tuple[int, ...]], way: Sequence[Sharding], mesh: Any) -> Answer:
    """Asks DTensor."""
    tensors: list[DTensor] = []
    for shape, each in zip(shapes, way, strict=True):
        local = list(shape)
        if isinstance(each, Split):
            local[each.axis] //= RANKS
        placement = Shard(each.axis) if isinstance(each, Split) else Replicate()
        tensors.append(DTensor.from_local(torch.randn(local), mesh, [placement], run_check=False))
    try:
        with CommDebugMode() as communication, torch.no_grad():
            result: Any = function(*tensors)
    except Exception as error:  # DTensor has no one type for what it cannot
        return Answer(None, f"refuses: {type(error).__name__}")
    if communication.get_total_counts():
        return Answer(None)
    (placement,) = result.placements
    if isinstance(placement, Shard):
        return Answer(str(Split(placement.dim)))
    if isinstance(placement, DPartial):
        return Answer(str(Partial()) if placement.reduce_op == "sum" else f"Partial({placement.reduce_op})")
    return Answer(str(WHOLE))


def disagreements() -> tuple[int, list[tuple[str, str, Answer, Answer]]]:
    """Returns how many ways were asked about, and (op, operands, ours, DTensor's) where they disagree."""
    store: Any = FakeStore()
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=store)
    mesh = init_device_mesh("cpu", (RANKS,))
    asked, found = 0, list[tuple[str, str, Answer, Answer]]()
    for name, (function, shapes) in CASES.items():
        for way in ways(shapes):
            asked += 1
            own, other = ours(function, shapes, way), theirs(function, shapes, way, mesh)
            if own.result != other.result or other.why:
                found.append((name, ", ".join(map(_short, way)), own, other))
    dist.destroy_process_group()
    return asked, found


def _short(each: Sharding) -> str:
    return f"split {each.axis}" if isinstance(each, Split) else "whole"


def _words(answer: Answer) -> str:
    text = str(answer).replace("Whole()", "whole").replace("Split(axis=", "split ")
    return text.replace("Partial(reduction='", "terms of ").replace("Partial(", "terms of ").rstrip("')")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path, help="write the table there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    asked, found = disagreements()
    lines = [
        f"{len(CASES)} ops in {asked} ways of holding their tensors on {RANKS} ranks: {asked - len(found)} alike.",
        "",
        "| op | operands | lowerkit | DTensor |",
        "|---|---|---|---|",
        *(f"| {name} | {way} | {_words(own)} | {_words(other)} |" for name, way, own, other in found),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.markdown is not None:
        arguments.markdown.write_text(
            f"# Sharding rules beside DTensor's\n\n`python tools/sharding_rules.py`, torch {torch.__version__}:\n{text}"
        )


if __name__ == "__main__":
    main()
