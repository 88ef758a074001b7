"""The blocks of docs/scale-out.md: each has a name, so that a test can run it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILES = ("model.py", "plan.json")
COMMANDS = ("compile", "replicas", "ranks", "elastic")
ON_RAY = ("data", "serve", "update")
_FENCE = re.compile(r"^(?:<!-- block: (?P<name>[\w.]+) -->\n)?```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str | None, str]]:
    """Returns the name, None where it has none, and the text of each fenced block, in the order of the page."""
    page = (ROOT / "docs/scale-out.md").read_text(encoding="utf-8")
    return [(match["name"], match["text"]) for match in _FENCE.finditer(page)]


def block(name: str) -> str:
    (text,) = [text for one, text in blocks() if one == name]
    return text


def write_files(folder: Path) -> None:
    """Writes the files that the page shows, and copies of the examples that it names."""
    for name in FILES:
        (folder / name).write_text(block(name))
    for name in ("mesh_rank.py", "elastic_mesh.py"):
        (folder / name).write_text((ROOT / "docs/distributed" / name).read_text())
