"""Archives of torch with other text inside: documents of a ``.pt2`` and code of a TorchScript file, sealed again.

Flipped bytes end at the checksum of the archive. Here the entry is changed and the archive written anew, and some of
what is put in would leave a file behind if anything ran it: ``CANARY``, which must not exist after any case.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from untrusted.mutations import mutate_document

CANARY = Path(tempfile.gettempdir()) / f"lowerkit-canary-{os.getpid()}"
_EXPRESSIONS = (
    f"__import__('os').system('touch {CANARY}')", f"open('{CANARY}', 'w')", f"exec('open(\"{CANARY}\", \"w\")')",
    f"(lambda: open('{CANARY}', 'w'))()", f"[open('{CANARY}', 'w') for _ in (1,)][0]",
    f"Symbol('s0').__class__.__init__.__globals__['__builtins__']['open']('{CANARY}', 'w')",
    f"L['x'].save('{CANARY}') == 0", "9**9**9**9", "Pow(Integer(9), Pow(Integer(9), Integer(99)))", "(" * 4000,
    f"torch.save(0, '{CANARY}')", "torch.ops.aten.from_file.default", "torch.ops.aten.save.default", "os.system",
    f"../../../../../..{CANARY}", str(CANARY), f"s0 + open('{CANARY}', 'w')",
)  # fmt: skip
_STATEMENTS = (
    f'  torch.save(x, "{CANARY}")', f'  torch.from_file("{CANARY}", True, 8)', f'  ops.aten.save(x, "{CANARY}")',
    f'  _0 = ops.aten.from_file("{CANARY}", True, 8)', f'  import os; os.system("touch {CANARY}")',
    "  while True:\n    x = torch.add(x, 1)", "  x = __import__('os')", "  uninitialized(Tensor)", "  return",
    f'  prim.rpc_sync("{CANARY}")', f'  _1 = open("{CANARY}", "w")', "  raise AssertionError(0)", "  breakpoint()",
)  # fmt: skip


def mutated_texts(rng: np.random.Generator, corpus: list[bytes]) -> bytes:
    """An archive of the corpus with one document or one file of code changed."""
    data = corpus[int(rng.integers(len(corpus)))]
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        entries = old.infolist()
        texts = [entry for entry in entries if re.search(r"\.json$|code/.*\.py$", entry.filename)]
        chosen = texts[int(rng.integers(len(texts)))]
        for entry in entries:
            content = old.read(entry)
            if entry is chosen:
                content = _document(rng, content) if entry.filename.endswith(".json") else _code(rng, content)
            new.writestr(entry, content)
    return made.getvalue()


def _document(rng: np.random.Generator, content: bytes) -> bytes:
    document = json.loads(content)
    texts = _texts(document)
    if not texts or rng.random() < 0.4:
        return mutate_document(rng, content)
    # Most texts are names of nodes; those that are read as expressions and operators are as often wanted.
    wanted = [
        place for place in texts if place[1] in ("expr_str", "target", "guards_code", "path_name", "string_value")
    ]
    places = wanted if wanted and rng.random() < 0.6 else texts
    for _ in range(int(rng.integers(1, 3))):
        holder, key = places[int(rng.integers(len(places)))]
        text = _EXPRESSIONS[int(rng.integers(len(_EXPRESSIONS)))]
        holder[key] = text if rng.random() < 0.7 else f"{holder[key]} + {text}"
    return json.dumps(document).encode()


def _texts(document: Any) -> list[tuple[Any, Any]]:
    """Where texts stand: what holds each, and its key there."""
    found: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        holder = left.pop()
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(value, dict | list):
                left.append(value)
            elif isinstance(value, str):
                found.append((holder, key))
    return found


def _code(rng: np.random.Generator, content: bytes) -> bytes:
    lines = content.decode().split("\n")
    place = int(rng.integers(1, max(len(lines) - 1, 2)))
    match int(rng.integers(4)):
        case 0:
            lines.insert(place, _STATEMENTS[int(rng.integers(len(_STATEMENTS)))])
        case 1:
            del lines[place : place + 1]
        case 2:
            other = ("torch.save", "torch.from_file", "ops.aten.save", "prim.fork", "open", "torch.load", "ops.x.y")
            name = other[int(rng.integers(len(other)))]
            lines = re.sub(r"\btorch\.\w+(?=\()", name, "\n".join(lines), count=1).split("\n")
        case _:
            lines.insert(place, lines[int(rng.integers(len(lines)))])
    return "\n".join(lines).encode()


def nothing_ran() -> None:
    """Raises if any text of any case so far left its file behind."""
    if CANARY.exists():
        CANARY.unlink()
        raise AssertionError("text of a model file was executed")
