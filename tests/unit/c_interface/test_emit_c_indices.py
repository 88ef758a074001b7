"""`emit-c`: an index out of range is a status, says which it is, and leaves the states as they were."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

import lowerkit
from lowerkit.errors import RuntimeFault
from tests.unit.c_interface.test_emit_c import Struct, aligned, build, emit, needs_compiler, shared_library


class Cached(torch.nn.Module):
    """A cache that is written by position, and a look-up in a table of any size, inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.cache: Tensor

    def forward(self, table: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        self.cache.index_copy_(0, at, torch.ones(1, 3))
        taken = torch.cond(at.sum() < 3, lambda t, r: t[r] * 1, lambda t, r: t[:1] * r.sum(), (table, rows))
        return self.cache + taken


@needs_compiler
def test_a_status_that_says_which(tmp_path: Path) -> None:
    table = torch.arange(15.0).reshape(5, 3)
    example = (table, torch.tensor([0]), torch.tensor([2], dtype=torch.int32))
    shapes = ({0: Dim("n", min=2, max=9)}, None, None)
    compiled = lowerkit.compile(Cached().eval(), example, dynamic_shapes=shapes)
    files = emit(compiled, tmp_path)
    session = compiled.session
    places = [(step.check.operator, step.location) for step in session.program.steps if step.check is not None]
    assert [operator for operator, _ in places] == ["index_copy", "index"]
    for operator, location in places:
        assert f'"{operator} at {location}"' in files.header
    library = shared_library(tmp_path / "c")
    state, arena, output = aligned(1 << 10), aligned(files.arena_bytes), np.zeros((4, 3), np.float32)
    library.model_reset(state.ctypes.data_as(ctypes.c_void_p))
    bad = np.full(4, -1, np.int64)
    cases = (
        (0, 4, None), (1, -5, None), (2, 5, (1, 0, 5, 5)), (3, 5, None), (4, 0, (0, 0, 4, 4)), (-1, 0, (0, 0, -1, 4)),
        (2, -6, (1, 0, -6, 5)), (2**40, 0, (0, 0, 2**40, 4)), (0, 0, None),
    )  # fmt: skip
    for at, row, fault in cases:
        arguments = table.numpy(), np.array([at]), np.array([row], np.int32)
        before = state.copy()
        bad[:] = -1
        status = library.model_run(Struct(5, *arguments, output, state, arena, 0, 0, bad).data)
        if fault is None:
            assert status == 0
            assert tuple(bad) == (-1, -1, -1, -1)
            assert session.run(*arguments)[0].tobytes() == output.tobytes()
            continue
        assert status == 3
        assert tuple(bad) == fault
        assert (state == before).all()
        assert library.model_run(Struct(5, *arguments, output, state, arena, 0, 0, 0).data) == 3, "nobody asks which"
        with pytest.raises(RuntimeFault, match=f"index {fault[2]} of .* size {fault[3]} "):
            session.run(*arguments)


@needs_compiler
def test_the_example_says_which(tmp_path: Path) -> None:
    index = torch.tensor([1, 0])
    files = emit(lowerkit.compile(torch.nn.Embedding(3, 4), (index,)), tmp_path)
    assert "3 where an index is out of range" in files.header
    folder = tmp_path / "c"
    build(folder, "example.c", "-o", "example")
    index.numpy().tofile(folder / "input.bin")
    subprocess.run(["./example", "input.bin"], cwd=folder, check=True, timeout=300, env={})
    np.array([1, 3]).tofile(folder / "input.bin")
    ended = subprocess.run(["./example", "input.bin"], cwd=folder, timeout=300, env={}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "index 3 is out of range" in ended.stderr
    assert ended.stderr.startswith("embedding at ")
