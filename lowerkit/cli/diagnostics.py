"""Turns every exception into one diagnostic on stderr and a documented exit code."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

import click

from lowerkit.errors import LowerkitError

EXIT_USAGE = 2
EXIT_INTERNAL = 5
EXIT_RESOURCES = 7
EXIT_INTERRUPTED = 130


class DiagnosedError(Exception):
    """A failure whose diagnostic is written already: that of another process, which this one speaks for.

    Attributes:
        text: the diagnostic.
        exit_code: what to leave with.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.text = text
        self.exit_code = exit_code


def exit_with_diagnostic(error: BaseException) -> NoReturn:
    """Prints one diagnostic for ``error`` and leaves with its exit code.

    An unexpected exception is exit code 5: its traceback goes to a file that the diagnostic names, not to the screen.
    """
    match error:
        case SystemExit():
            raise error
        case click.exceptions.Exit():
            raise SystemExit(error.exit_code)
        case click.ClickException():
            error.show(file=sys.stderr)
            raise SystemExit(EXIT_USAGE)
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0)
        case _:
            text, exit_code = diagnostic_of(error)
            _print(text)
            raise SystemExit(exit_code)


def diagnostic_of(error: BaseException) -> tuple[str, int]:
    """Returns the text of the diagnostic and the exit code for ``error``; writes an unexpected one's traceback."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", EXIT_INTERRUPTED
        case DiagnosedError():
            return error.text, error.exit_code
        case LowerkitError():
            return error.render(), error.exit_code
        case click.ClickException():
            return f"Error: {error.format_message()}", EXIT_USAGE
        case MemoryError():
            return "error[LK7002]: out of memory\n  hint: a smaller batch or more memory", EXIT_RESOURCES
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"error[LK7001]: no space left: {error.filename or error}\n  hint: free some disk space"
            return text, EXIT_RESOURCES
        case _:
            text = (
                f"error[LK5002]: internal error: {type(error).__name__}: {error}\n"
                f"  hint: this is a bug in lowerkit; please report it with {_write_traceback(error)}"
            )
            return text, EXIT_INTERNAL


def _print(text: str) -> None:
    """Prints to stderr; the first word is red on a terminal that wants colour (NO_COLOR is honoured by click).

    Names that a file gives may hold what a terminal takes for commands: it is shown as a question mark.
    """
    text = "".join(part if part.isprintable() or part in "\n\t" else "?" for part in text)
    # Names come from files: what moves the cursor or rings the bell is shown, not done.
    text = "".join(one if one >= " " or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)
    head, separator, rest = text.partition(":")
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    click.echo((click.style(head, fg="red", bold=True) if colour else head) + separator + rest, err=True)


def _write_traceback(error: BaseException) -> str:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="lowerkit-crash-", suffix=".txt", delete=False) as file:
            file.writelines(traceback.format_exception(error))
            return str(Path(file.name))
    except OSError:
        return "the traceback (it could not be written to a file)"
