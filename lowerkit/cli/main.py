"""The `lowerkit` command: each subcommand is loaded when it is called, so that --help stays quick."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
from difflib import get_close_matches
from typing import NoReturn

import click

from lowerkit import __version__
from lowerkit.cli.diagnostics import exit_with_diagnostic
from lowerkit.cli.supervise import Supervision

COMMANDS: dict[str, str] = {
    "compile": "Compile a model into one artifact file.",
    "quantize": "Quantize a float model to int8 with calibration data, and compile it.",
    "run": "Run an artifact on inputs.",
    "check": "Compare a compiled model with eager, op by op and as a whole.",
    "inspect": "Show the ops, regions, memory, FLOPs and bytes of a model or artifact.",
    "plan": "Plan a model for meshes of devices: memory, collectives and time, without its weights.",
    "opt": "Run passes over an MLIR file.",
    "emit-c": "Write an artifact as an object, a header and an example for C.",
    "verify": "Prove an artifact again: checksums and golden inputs.",
    "comm": "Trace, tune and describe the collectives between ranks.",
    "tune": "Measure tiles of a model's products on this machine's card.",
    "bench": "Time a model beside its peers, interleaved.",
    "conformance": "Run a public test suite case by case: onnx, torch.",
    "targets": "List the targets and CPU levels, or write the package of a new target.",
    "cache": "Show or clear the caches of programs and kernels.",
    "doctor": "Report what this installation and machine can do.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported from ``lowerkit.cli.<name>_command`` on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"lowerkit.cli.{cmd_name.replace('-', '_')}_command").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the command that a mistyped one resembles."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            nearby = get_close_matches(args[0], COMMANDS, n=1)
            meant = f"Did you mean {nearby[0]!r}?" if nearby else "Run 'lowerkit --help' for the list of commands."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lowerkit")
@click.option(
    "--package-deadline",
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="How long one call into the package of a target or device may take.",
)
@click.pass_context
def cli(context: click.Context, package_deadline: float) -> None:
    """Compile captured PyTorch and ONNX models into one verified file, and run it.

    Exit codes: 0 ok, 2 usage, 3 bad input, 4 unsupported, 5 internal, 6 parity, 7 resources, 8 device, 130 interrupted.
    """
    context.obj = Supervision(package_deadline) if context.obj is True else None


def _open_standard_streams() -> None:
    """Opens /dev/null in the place of standard streams that the process was started without.

    Else the next file that is opened, an artifact perhaps, is what is printed into.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # takes the lowest that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def main(*, supervised: bool = True) -> NoReturn:
    """Runs the command line; every failure becomes one diagnostic and a documented exit code, never a traceback.

    Args:
        supervised: a command that calls packages of others goes on in a child process (see ``supervise.py``).
    """
    _open_standard_streams()
    # What imports and captures make lives until the end of the process: looking through all of it for garbage after
    # every 700 objects takes a tenth of a compilation.
    gc.set_threshold(200_000, 20, 50)
    warnings = logging.StreamHandler()
    warnings.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("lowerkit").addHandler(warnings)
    try:
        cli.main(standalone_mode=False, obj=supervised)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, click.Abort)):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not end the process on its way out
        exit_with_diagnostic(error)
    raise SystemExit(0)
