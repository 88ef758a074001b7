"""The process that runs cases for :mod:`lowerkit.conformance.runner`: requests on stdin, replies on stdout.

Messages are those of the kernel compiler's workers. The first reply says that the imports are done, so that their time
is charged to no case.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from lowerkit.conformance.results import Verdict
from lowerkit.conformance.suite import NotACaseError, Suite, SuiteReference, WrongResultError
from lowerkit.errors import CodegenError, LowerkitError, PassError, VerifyError
from lowerkit.worker_process import read_message, write_message

LONGEST_REASON = 600
_INTERNAL = (CodegenError, PassError, VerifyError)


class Request(msgspec.Struct):
    """A case to run."""

    name: str


class Reply(msgspec.Struct):
    """What came of it."""

    verdict: Verdict = "passed"
    reason: str = ""
    notes: list[str] = []


def run_case(suite: Suite, name: str) -> Reply:
    """Runs one case and turns what it raises into a verdict."""
    try:
        report = suite.run(name)
    except NotACaseError as error:
        return Reply("skipped", _line(str(error)))
    except WrongResultError as error:
        return Reply("wrong", _line(str(error)))
    except MemoryError:
        return Reply("crashed", "out of memory")
    except LowerkitError as error:
        text = "; ".join([f"{error.code} {error.message}", *error.details])
        return Reply("crashed" if isinstance(error, _INTERNAL) else "rejected", _line(text))
    except Exception as error:
        return Reply("crashed", _line(f"{type(error).__name__}: {error}"))
    return Reply("passed", "", report.notes)


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON]


def main() -> None:
    """Serves requests until stdin ends. Arguments: the suite's module, its argument, bytes of memory (0: no limit)."""
    module, argument, memory = sys.argv[1:4]
    # Whatever a library prints on stdout must not get between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    suite = SuiteReference(module, argument).make()
    if int(memory):
        # Of data, not of addresses: libraries reserve addresses that they never touch.
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    write_message(replies, Reply())
    while (data := read_message(sys.stdin.buffer)) is not None:
        request = msgspec.msgpack.decode(data, type=Request)
        write_message(replies, run_case(suite, request.name))


if __name__ == "__main__":
    main()
