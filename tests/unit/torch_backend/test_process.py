"""A process that compiled graphs ends cleanly, whatever it still holds; and its children go on with them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, threading
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
fast = torch.compile(model, backend="lowerkit")
x = torch.randn(3, 4)
fast(x).sum().backward()
pending = fast(x).sum()  # a backward that never runs
model.eval()
with torch.no_grad():
    expected = fast(x)
    fast(torch.randn(5, 4))
    worker = threading.Thread(target=fast, args=(x,))
    worker.start()
    worker.join()
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.allclose(fast(x), expected) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(x):
    return torch.linalg.eigvals(x @ x.T).real + 1


try:
    torch.compile(refused, backend="lowerkit", fullgraph=True)(x)
except Exception as error:
    kept = error  # with the frames of the compilation
sys.modules["kept"] = [fast, pending, kept]
"""


def test_a_process_ends_without_a_word() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert "leak" not in ran.stderr and not ran.stderr.strip(), ran.stderr
