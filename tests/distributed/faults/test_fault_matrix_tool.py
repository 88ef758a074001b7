"""tools/fault_matrix.py goes on where it was ended, and leaves nothing behind however it is ended."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.faults import namespaces
from tests.support.faults.cells import FAULTS, TRANSPORTS, Cell, cells
from tests.support.faults.driver import Outcome
from tests.support.ranks import PATIENCE

TOOL = Path(__file__).resolve().parents[3] / "tools/fault_matrix.py"
NAME = "desync/all_gather/shm"
_WITHOUT_NAMESPACES = namespaces.missing()


def tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("fault_matrix", TOOL)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_cells_that_passed_are_not_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "outcomes.json"
    first = run_tool("--filter", NAME, "--resume", kept)
    assert first.returncode == 0 and f"s  {NAME}\n1 cells, 0 failed, 0 left" in first.stdout, first.stdout
    outcomes: dict[str, Any] = json.loads(kept.read_text())
    assert set(outcomes) == {NAME} and "#3" in outcomes[NAME]["messages"]["0"]
    assert "0 cells, 0 failed, 0 left" in run_tool("--filter", NAME, "--resume", kept).stdout
    outcomes[NAME]["problems"] = ["something"]
    kept.write_text(json.dumps(outcomes))
    late = run_tool("--filter", NAME, "--resume", kept, "--seconds", 0)
    assert late.returncode == 2 and "0 cells, 0 failed, 1 left" in late.stdout
    assert "1 cells, 0 failed, 0 left" in run_tool("--filter", NAME, "--resume", kept).stdout


def test_the_table_shows_what_ran_what_failed_and_who_named_a_later_operation() -> None:
    module = tool()
    every = [cell for fault in FAULTS for transport in TRANSPORTS for cell in cells(fault, transport)]
    outcomes = {cell.name: Outcome(cell, seconds=0.5) for cell in every if cell.fault != "loss"}
    outcomes["desync/barrier/shm"].problems.append("something")
    said = "error[LK8009]: broadcast #4 of group 'g', rank 0: rank 1 has ended"
    outcomes["killed/broadcast@0/tcp"].messages[0] = said
    page: str = module.page(outcomes)
    lines = {tuple(line.split(" | ")[:2]): line for line in page.splitlines() if line.startswith("| ")}
    assert " 1 failed." in page and f"`{said}`" in page
    assert "**FAIL**" in lines["| desync", "shm"] and page.count("**FAIL**") == 2  # once in the legend
    assert "0.50*" in lines["| killed", "tcp"] and page.count("0.50*") == 1
    assert lines["| loss", "tcp"].count("not run") == 14


def in_namespaces(spaces: set[str]) -> list[int]:
    """Returns the processes in these network namespaces."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if str((entry / "ns/net").readlink()) in spaces:
                    found.append(int(entry.name))
            except OSError:  # it has ended
                continue
    return found


def spaces_of_children(parent: int) -> set[str]:
    """Returns the network namespaces of a process's children, without its own."""
    found: set[str] = set()
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            found.add(str(Path(f"/proc/{child}/ns/net").readlink()))
        except OSError:
            continue
    return found - {str(Path("/proc/self/ns/net").readlink())}


@pytest.mark.skipif(_WITHOUT_NAMESPACES is not None, reason=str(_WITHOUT_NAMESPACES))
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(how: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(TOOL), "--filter", "stopped/all_gather/both"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + PATIENCE
        spaces: set[str] = set()
        # Two namespaces, a holder in each, and the three ranks.
        while len(spaces) < 2 or len(in_namespaces(spaces)) < 5:
            assert process.poll() is None and time.monotonic() < end, "the cell has not begun"
            time.sleep(0.02)
            spaces = spaces_of_children(process.pid)
        process.send_signal(how)
        assert process.wait(PATIENCE) == (-how if how == signal.SIGKILL else 128 + how)
    end = time.monotonic() + PATIENCE
    while left := in_namespaces(spaces):
        assert time.monotonic() < end, f"processes {left} are left"
        time.sleep(0.02)
    if how != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_namespaces_end_with_their_block() -> None:
    if _WITHOUT_NAMESPACES is not None:
        pytest.skip(_WITHOUT_NAMESPACES)
    with namespaces.wire() as made:
        spaces = {str(Path(f"/proc/{holder}/ns/net").readlink()) for holder in made.holders}
        assert len(in_namespaces(spaces)) == 2
    assert in_namespaces(spaces) == []


def test_cells_have_names_of_their_own() -> None:
    names = [cell.name for fault in FAULTS for transport in TRANSPORTS for cell in cells(fault, transport)]
    assert len(names) == len(set(names))
    assert Cell("killed", "plan", "inside").name in names
