"""Runs torch's own tests of torch.distributed (those in its wheel) with gloo and with lowerkit, and writes docs.

    python tools/torch_distributed_suite.py --state results.json          # goes on where an earlier call stopped
    python tools/torch_distributed_suite.py --state results.json --page PAGE.md --seconds 0             # the page alone

A case runs on ``--world-size`` ranks, each a process forked from one that has torch loaded. The suite asks by name
which backend it tests, and leaves cases out; it takes lowerkit for gloo, so that both are asked the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

SUITE = "torch.testing._internal.distributed.distributed_test"
BACKENDS = ("gloo", "lowerkit")
CASE_SECONDS = 240.0  # for a hang: no case takes as long, on however busy a machine


class AskedAsGloo(str):
    """The name of a backend that passes for gloo where a case compares it, so that both take the same branches."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def case_class() -> Any:
    from importlib import import_module

    suite = import_module(SUITE)
    return type("Case", (suite.TestDistBackend, suite.DistributedTest._DistTestBase), {})


def run_rank(connection: Any, backend: str, name: str, rank: int, size: int, folder: str) -> None:
    """Runs a case as one rank; sends "passed", "skipped: why" or "failed: why"."""
    with Path(f"{folder}/rank{rank}.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    verdict = "passed"
    try:
        run_case(backend, name, rank, size, folder)
    except SystemExit as stop:
        verdict = exit_verdict(int(stop.code or 0))
    except BaseException as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        traceback.print_exc()
        verdict = f"skipped: {error}" if "SkipTest" in type(error).__name__ else f"failed: {''.join(lines[:1])[:160]}"
    sys.stdout.flush()
    connection.send(verdict)
    connection.close()
    os._exit(0)  # what a failed case leaves behind may not end by itself


def send_names(connection: Any) -> None:
    """Sends the names of all cases. Only ranks load the suite, which takes seconds, and they are forked."""
    connection.send(sorted(name for name in dir(case_class()) if name.startswith("test_")))
    connection.close()


def case_names(context: Any) -> list[str]:
    ours, theirs = context.Pipe()
    process = context.Process(target=send_names, args=(theirs,))
    process.start()
    theirs.close()
    names: list[str] = ours.recv()
    process.join()
    return names


def run_case(backend: str, name: str, rank: int, size: int, folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import DistTestCases
    from torch.testing._internal.distributed import distributed_test

    torch.set_num_threads(1)
    os.environ.update(TEMP_DIR=folder, WORLD_SIZE=str(size), BACKEND=backend)
    setattr(distributed_test, "BACKEND", AskedAsGloo(backend))  # noqa: B010 -- a constant for its own file
    for feature in DistTestCases.backend_feature.values():
        if "gloo" in feature:
            feature.add(backend)
    case = case_class()(name)
    case.rank = rank
    case.file_name = f"{folder}/rendezvous"
    seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
    dist.init_process_group(
        backend, init_method=case.init_method, world_size=size, rank=rank, timeout=timedelta(seconds=seconds)
    )
    case._barrier()
    getattr(case, name)()
    case._barrier()
    dist.destroy_process_group()


def exit_verdict(code: int) -> str:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    return "passed" if code == 0 else f"skipped: {reasons[code]}" if code in reasons else f"failed: exit code {code}"


def run(context: Any, backend: str, name: str, size: int) -> str:
    """Runs a case on all ranks; returns the worst verdict."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / part).mkdir()
        ranks: list[tuple[Any, Any]] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_rank, args=(theirs, backend, name, rank, size, folder))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        deadline = time.monotonic() + CASE_SECONDS
        verdicts: list[str] = []
        for process, connection in ranks:
            try:
                ready = connection.poll(max(0.0, deadline - time.monotonic()))
                verdicts.append(connection.recv() if ready else f"failed: not done within {CASE_SECONDS:.0f} s")
            except EOFError:
                process.join()
                verdicts.append(f"failed: exit code {process.exitcode}")
        for process, connection in ranks:
            connection.close()
            process.join(2)
            if process.exitcode is None:
                process.kill()
                process.join()
    failed = [verdict for verdict in verdicts if verdict.startswith("failed")]
    skipped = [verdict for verdict in verdicts if verdict.startswith("skipped")]
    return (failed or skipped or verdicts)[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(results: dict[str, dict[str, str]], size: int) -> str:
    """Returns the page of the results."""
    ran = [name for name, row in results.items() if not all(one.startswith("skipped") for one in row.values())]
    passed = {backend: [name for name in ran if results[name][backend] == "passed"] for backend in BACKENDS}
    both = set(passed["gloo"]) & set(passed["lowerkit"])
    lines = [
        "# torch's own tests of torch.distributed",
        "",
        "Written by "
        "`python tools/torch_distributed_suite.py --state STATE --page docs/results/torch-distributed-suite.md`:",
        f"the cases of `_DistTestBase` in torch's wheel, on {size} ranks of one machine without a GPU, with gloo and",
        "with lowerkit. Cases that are left out for gloo are left out here; most want GPUs.",
        "",
        f"Of {len(results)} cases {len(ran)} ran. gloo passes {len(passed['gloo'])}, lowerkit",
        f"{len(passed['lowerkit'])}; of those that gloo passes lowerkit passes {len(both)}.",
        "",
        "| case | gloo | lowerkit |",
        "|---|---|---|",
    ]
    for name in ran:
        cells = [results[name].get(backend, "").replace("|", "/").replace("\n", " ") for backend in BACKENDS]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    left_out = ", ".join(name for name in results if name not in ran)
    return "\n".join([*lines, "", f"Left out with both: {left_out}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, required=True, help="JSON file of verdicts, read and written")
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    parser.add_argument("--world-size", type=int, default=3)
    parser.add_argument("--only", default="", help="run only cases whose name contains this, again")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after that long")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(given.world_size), TEMP_DIR=folder)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([SUITE, "torch._dynamo", "lowerkit.distributed.creation"])
        results: dict[str, dict[str, str]] = json.loads(given.state.read_text()) if given.state.exists() else {}
        names = case_names(context)
        end = time.monotonic() + given.seconds
        for name in names:
            row = results.setdefault(name, {}) if given.only in name else {}
            for backend in BACKENDS:
                if time.monotonic() > end or given.only not in name or (backend in row and not given.only):
                    continue
                # What gloo leaves out needs no second opinion.
                skipped = backend == "lowerkit" and row.get("gloo", "").startswith("skipped")
                row[backend] = row["gloo"] if skipped else run(context, backend, name, given.world_size)
                print(f"{name} {backend}: {row[backend]}", flush=True)
                given.state.write_text(json.dumps(results, indent=1))
        complete = {name: row for name, row in results.items() if len(row) == len(BACKENDS)}
        if given.page is not None:
            given.page.write_text(page(complete, given.world_size))


if __name__ == "__main__":
    main()
