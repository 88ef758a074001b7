"""Captured programs come back from the cache as they were, and only where nothing they depend on has changed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from lowerkit.capture import program_cache
from lowerkit.capture.load_model import capture_path
from lowerkit.capture.program_cache import ProgramCache
from lowerkit.compiler import CompileOptions, compile_program


class Small(torch.nn.Module):
    """Weights of many forms: a matrix, a transposed view, an expanded one, an empty one, bf16."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.first = torch.nn.Parameter(torch.randn(24, 16, generator=generator))
        self.turned = torch.nn.Parameter(torch.randn(16, 24, generator=generator).t())
        self.spread = torch.nn.Parameter(torch.randn(1, 24, generator=generator).expand(3, 24))
        self.none = torch.nn.Parameter(torch.empty(0, 24))
        self.narrow = torch.nn.Parameter(torch.randn(24, generator=generator).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = x @ self.first.t() + x @ self.turned.t() + self.spread
        return torch.cat([product, self.none]) + self.narrow.float()


class Nested(torch.nn.Module):
    """A state, and arguments and results that are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.nn.Buffer(torch.full((2, 3), 0.5))

    def forward(self, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.total.add_(pair["left"])
        return {"sum": self.total * 2, "product": pair["left"] * pair["right"]}


def write_model(form: str, folder: Path) -> Path:
    path, example = folder / f"model.{form}", (torch.randn(3, 16),)
    if form == "nested.pt2":
        torch.export.save(torch.export.export(Nested(), ({"left": torch.ones(2, 3), "right": torch.ones(2, 3)},)), path)
    elif form == "pt2":
        torch.export.save(torch.export.export(Small(), example), path)
    else:
        torch.jit.save(torch.jit.trace(Small(), example), str(path))
    return path


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lowerkit" / "programs"


@pytest.mark.parametrize("form", ["pt2", "pt", "nested.pt2"])
def test_the_artifact_is_the_same_to_the_byte(form: str, tmp_path: Path, cache_folder: Path) -> None:
    path = write_model(form, tmp_path)
    written: list[bytes] = []
    remarks: list[list[str]] = []
    for _ in range(2):
        inputs = [] if form == "nested.pt2" else ["x:3x16:f32"]
        program = capture_path(path, inputs, use_cache=True)
        compiled = compile_program(program, CompileOptions(workers=1))
        compiled.save(tmp_path / "model.lk")
        written.append((tmp_path / "model.lk").read_bytes())
        remarks.append([remark for remark in compiled.remarks if "program cache" in remark])
    assert written[0] == written[1]
    assert remarks == [[], [f"{path} was captured before and taken from the program cache"]]
    assert len(list(cache_folder.glob("??/*"))) == 1


@pytest.mark.parametrize("form", ["pt2", "nested.pt2"])
def test_a_program_comes_back_whole(form: str, tmp_path: Path, cache_folder: Path) -> None:
    path = write_model(form, tmp_path)
    fresh = capture_path(path, use_cache=True)
    stored = program_cache.encode_program(fresh, path)
    assert stored is not None
    again = program_cache.decode_program(stored, path)
    assert again.weights.names() == fresh.weights.names()
    for name in fresh.weights:
        np.testing.assert_array_equal(again.weights.get(name), fresh.weights.get(name), strict=True)
    assert again.text(locations=True) == fresh.text(locations=True)
    assert (again.signature, again.output_tree) == (fresh.signature, fresh.output_tree)
    assert again.input_tree == fresh.input_tree
    if form == "nested.pt2":
        return
    matrix = fresh.weights.get("first").tobytes()
    assert matrix not in stored
    with zipfile.ZipFile(path) as archive:
        assert any(archive.read(name) == matrix for name in archive.namelist())


def test_a_hit_needs_no_torch(tmp_path: Path, cache_folder: Path) -> None:
    path = write_model("pt2", tmp_path)
    capture_path(path, use_cache=True)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from lowerkit.compiler import compile\n"
        f"compile({str(path)!r}, workers=1).save({str(tmp_path / 'model.lk')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    assert (tmp_path / "model.lk").stat().st_size > 0


def test_what_a_program_depends_on_is_in_the_key(tmp_path: Path, cache_folder: Path) -> None:
    path = write_model("pt", tmp_path)

    def entries(inputs: list[str], seed: int = 0) -> int:
        capture_path(path, inputs, seed=seed, use_cache=True)
        return len(list(cache_folder.glob("??/*")))

    np.save(tmp_path / "x.npy", np.ones((3, 16), np.float32))
    assert entries(["x:3x16:f32"]) == 1
    assert entries(["x:3x16:f32"]) == 1
    assert entries(["x:3x16:f32"], seed=1) == 2
    assert entries([f"x=@{tmp_path / 'x.npy'}"]) == 3
    np.save(tmp_path / "x.npy", np.zeros((3, 16), np.float32))
    assert entries([f"x=@{tmp_path / 'x.npy'}"]) == 4
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/extra/note", "another model")
    assert entries(["x:3x16:f32"]) == 5


def test_a_damaged_entry_is_captured_again(tmp_path: Path, cache_folder: Path) -> None:
    path = write_model("pt2", tmp_path)
    capture_path(path, use_cache=True)
    (entry,) = cache_folder.glob("??/*")
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(bytes(data))
    assert capture_path(path, use_cache=True).remarks == []
    assert capture_path(path, use_cache=True).remarks != []


def test_a_model_that_the_file_does_not_hold_is_not_cached(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_cache, "INLINE_LIMIT", 16)
    capture_path(write_model("pt2", tmp_path), use_cache=True)
    assert list(cache_folder.glob("??/*")) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, cache_folder: Path) -> None:
    cache_folder.parent.parent.write_text("a file where the folder should be")
    (remark,) = capture_path(write_model("pt2", tmp_path), use_cache=True).remarks
    assert remark.startswith(f"the program cache {cache_folder} cannot be written")


@settings(deadline=None, max_examples=100)
@given(data=st.data(), shape=array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
def test_any_view_comes_back(data: st.DataObject, shape: tuple[int, ...]) -> None:
    """Permuted, sliced and broadcast arrays, in a file whose bytes before them vary."""
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    view = values.transpose(data.draw(st.permutations(range(len(shape)))))
    if data.draw(st.booleans()):
        view = view[..., ::2] if view.ndim else np.broadcast_to(view, (2,))
    before = data.draw(st.integers(0, 9))
    content = np.concatenate([np.full(before, 7, np.uint8), values.reshape(-1).view(np.uint8)])
    tensor = program_cache.encode_tensor(view, {values.nbytes: [0, before]}, content)
    np.testing.assert_array_equal(program_cache.decode_tensor(tensor, content), view, strict=True)
    assert (tensor.data is None) == (
        view.nbytes == values.nbytes and view.transpose(np.argsort([-s for s in view.strides])).flags.c_contiguous
    ) or values.nbytes == 0


def test_programs_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, limit=1000)
    for number in range(3):
        cache.put(f"{number:064x}", bytes(400))
        cache.trim()
    assert cache.info().entries == 2


def test_a_folder_is_looked_at_again_once_enough_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    trim = ProgramCache.trim
    monkeypatch.setattr(ProgramCache, "trim", lambda self: looks.append(number) or trim(self))
    number = 0
    for number in range(12):
        cache = ProgramCache(tmp_path, limit=16_000)  # a sixteenth is 1000 bytes
        cache.put(f"{number:064x}", bytes(400))
        cache.trim_if_due()
    assert looks == [0, 3, 6, 9]


def test_a_folder_that_may_be_full_is_trimmed(tmp_path: Path) -> None:
    for number in range(50):
        cache = ProgramCache(tmp_path, limit=2000)
        cache.put(f"{number:064x}", bytes(900))
        cache.trim_if_due()
        assert cache.info().total_bytes <= 2000
