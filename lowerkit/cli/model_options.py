"""The options by which a command is told a model: the path or factory, its inputs, its symbolic dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import click.core

from lowerkit.errors import UsageError

if TYPE_CHECKING:
    from lowerkit.program.program import Program

Command = TypeVar("Command", bound=Callable[..., Any])


def model_options(command: Command) -> Command:
    """Adds MODEL, --input, --dynamic and --seed to a command."""
    decorators = [
        click.argument("model"),
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="NAME:SHAPE:DTYPE | NAME=@FILE.npy",
            help="One input, such as x:1x3x224x224:f32 (random values) or x=@x.npy. Repeat for each input.",
        ),
        click.option(
            "--dynamic",
            multiple=True,
            metavar="NAME:AXIS=LOW..HIGH",
            help="A dim that may vary between runs, such as x:0=1..64. Repeat for each.",
        ),
        click.option("--seed", default=0, show_default=True, help="Seed of the random inputs."),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


MODEL_OPTIONS = ("inputs", "dynamic", "seed")
"""What :func:`model_options` adds, as parameters of a command."""


def is_given(parameter: str) -> bool:
    """Whether an option of the command that runs was written on its command line."""
    return click.get_current_context().get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE


def refuse_given(parameters: Sequence[str], why: str) -> None:
    """Raises where an option was given that has no effect here: it would be dropped without a word.

    Raises:
        UsageError: LK1004, with each of them.
    """
    options = {parameter.name: parameter.opts[0] for parameter in click.get_current_context().command.params}
    given = [options[name] for name in parameters if is_given(name)]
    if given:
        raise UsageError("LK1004", f"{', '.join(given)} has no effect {why}", hint="leave it out")


def capture_model(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    dtype: str | None = None,
    use_cache: bool = False,
    meta: bool = False,
) -> Program:
    """Captures the model that the options name; ``dtype`` converts its floating weights and inputs first.

    With ``use_cache`` a file that was captured before is not captured again; its program has no eager side. With
    ``meta`` a factory runs without allocating weights; its program can only be sized.

    Raises:
        InputError, CaptureError, UnsupportedError: see ``lowerkit.capture.load_model.capture_path``.
    """
    from lowerkit.capture.load_model import capture_path

    return capture_path(model, list(inputs), list(dynamic), seed=seed, dtype=dtype, use_cache=use_cache, meta=meta)
