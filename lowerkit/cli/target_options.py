"""The options that say what to compile for."""

from __future__ import annotations

from pathlib import Path

import click

target_option = click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="NAME[:LEVEL][+...]",
    help="Accelerators in order and the CPU: acme_npu, cpu:x86-64-v3, acme_npu+cpu. `lowerkit targets` lists them. "
    "Several levels of the CPU make one file for all: cpu:x86-64-v3,x86-64-v4.",
)

allow_option = click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="Let accelerators compute less exactly than the model says: tf32 on cuda (tensor cores for products of f32).",
)

program_option = click.option(
    "--target",
    metavar="NAME[:LEVEL][+...]",
    help="Which program of the artifact, by what it was compiled for. [default: the best that this machine can run]",
)

device_option = click.option(
    "--device",
    metavar="[NAME=]DEVICE",
    help="The device that takes the place of the target's: cuda-sim runs what was compiled for cuda without a card.",
)


mesh_option = click.option(
    "--mesh",
    metavar="AXIS=RANKS[,...]",
    help="Split the model among ranks that run it together: tp=2, or dp=2,pp=2,tp=4. --shard says how.",
)

invariant_option = click.option(
    "--invariant",
    is_flag=True,
    help="Make every sum in one order, so that each --mesh gives the same bits, tp=1 included.",
)

shard_option = click.option(
    "--shard",
    "plan",
    type=click.Path(path_type=Path),
    metavar="PLAN.json|auto",
    help="How --mesh splits: patterns of module paths to column, row, vocabulary, expert, sequence or replicate, "
    'as in {"*.q_proj": "column", "*.o_proj": "row"}; for several axes one object for each. [default: auto]',
)


class Share(click.ParamType[float]):
    """A share of a whole: ``99%`` or ``0.99``."""

    name = "share"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the share as a number from 0 to 1."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{text!r} is no share: write 99% or 0.99", param, ctx)
        if not 0 <= share <= 1:
            self.fail(f"{text!r} is not from 0% to 100%", param, ctx)
        return share
