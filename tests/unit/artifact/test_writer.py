"""The writer: equal bytes for equal arguments, alignment, streaming, an earlier file that survives."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.artifact import atomic_file
from lowerkit.artifact.atomic_file import replace_file
from lowerkit.artifact.safetensors_blob import TensorSource, blob_bytes
from lowerkit.artifact.writer import write_artifact
from lowerkit.errors import CodegenError, InputError, LowerkitError, ResourceError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import WEIGHTS_ENTRY
from lowerkit.runtimes.safetensors_header import parse_safetensors, tensor_view
from lowerkit.runtimes.session import load
from lowerkit.runtimes.verify import verify_artifact
from tests.support.handmade_code import (
    CODE_ENTRY,
    GOLDEN_OUTPUTS_ENTRY,
    bias_weight,
    changed,
    handmade_code,
    tanh_of_sum_manifest,
    write_tanh_of_sum,
)


@pytest.fixture(params=["nameless", "named"])
def temporary_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with nameless temporary files and with the way for file systems that have none."""
    if request.param == "named":
        real_open = os.open

        def refuse_nameless(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not here")
            return real_open(path, flags, *rest, **named)

        monkeypatch.setattr(atomic_file.os, "open", refuse_nameless)


def write(path: Path, **weights: Any) -> None:
    write_artifact(path, tanh_of_sum_manifest(), handmade_code(), {"bias": bias_weight(), **weights})


def test_another_folder_and_hash_seed_give_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.support.handmade_code import write_tanh_of_sum\n"
        "write_tanh_of_sum(Path(sys.argv[1]), golden=True)"
    )
    results: list[bytes] = []
    for seed in ("1", "2"):
        folder = tmp_path / f"folder{seed}"
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[3])}
        subprocess.run([sys.executable, "-c", script, "model.lk"], cwd=folder, env=environment, check=True)
        results.append((folder / "model.lk").read_bytes())
    assert results[0] == results[1]


def test_the_order_of_weights_and_side_car_does_not_matter(tmp_path: Path) -> None:
    side_car = {"debug/a": b"a", "debug/b": b"b"}
    weights = {"bias": bias_weight(), "a": np.zeros(3, np.int8)}
    first = write_artifact(tmp_path / "1", tanh_of_sum_manifest(), handmade_code(), weights, side_car)
    backwards = dict(reversed(weights.items())), dict(reversed(side_car.items()))
    second = write_artifact(tmp_path / "2", tanh_of_sum_manifest(), handmade_code(), *backwards)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert first == second
    assert len(first.content_id) == 64


def test_code_starts_at_a_page_and_every_tensor_at_a_cache_line(tmp_path: Path) -> None:
    sizes = [1, 3, 64, 65, 1000]
    write(tmp_path / "model.lk", **{f"w{size}": np.zeros(size, np.uint8) for size in sizes})
    artifact = open_artifact(tmp_path / "model.lk")
    assert artifact.entries[CODE_ENTRY].offset % 4096 == 0
    start = artifact.entries[WEIGHTS_ENTRY].offset
    assert start % 64 == 0
    assert set(artifact.weights) == {"bias", *(f"w{size}" for size in sizes)}
    assert all((start + tensor.begin) % 64 == 0 for tensor in artifact.weights.values())
    with zipfile.ZipFile(tmp_path / "model.lk") as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("limit", [0, 3000, 9000, 20000])
def test_entries_beyond_the_32_bit_limit_of_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """zipfile writes 64-bit fields from 2 GiB on; with a smaller limit the same code runs on a small file."""
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", limit)
        path = write_tanh_of_sum(tmp_path / "model.lk", golden=True)
    artifact = open_artifact(path)
    assert artifact.entries[CODE_ENTRY].offset % 4096 == 0
    assert verify_artifact(path).passed


def test_the_safetensors_library_reads_the_weights() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.numpy import load as load_blob

    tensors: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(5, dtype=np.float16), "b": np.array([True, False]), "c": np.array(3.0),
        "d": np.zeros((0, 3), np.int64), "e": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    }  # fmt: skip
    loaded = load_blob(blob_bytes(tensors))
    assert {name for name in loaded if not name.startswith("__padding")} == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(loaded[name], array)
    half = np.arange(4).astype(ml_dtypes.bfloat16)
    blob = np.frombuffer(blob_bytes({"h": half}), np.uint8)
    np.testing.assert_array_equal(tensor_view(blob, parse_safetensors(blob)["h"]), half)


def test_weights_are_read_one_at_a_time(tmp_path: Path) -> None:
    alive = {"now": 0, "most": 0}

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive["now"] -= self.base is None

    def read() -> Any:
        alive["now"] += 1
        alive["most"] = max(alive.values())
        return np.ndarray.__new__(Counted, (1 << 20,), np.uint8)

    source = TensorSource(np.dtype(np.uint8), (1 << 20,), read)
    write(tmp_path / "model.lk", **{f"w{i}": source for i in range(5)})
    assert alive["most"] <= 2, "the next one may be made before the last one is dropped"


def test_a_source_that_gives_something_else_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(CodegenError, match="its source stated float32"):
        write(tmp_path / "model.lk", w=TensorSource(np.dtype(np.float32), (3,), lambda: np.zeros(4, np.float32)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["debug", "other/x", "debug/../x", "debug/", "golden/inputs.safetensors"])
def test_side_car_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(CodegenError):
        write_artifact(tmp_path / "model.lk", tanh_of_sum_manifest(), handmade_code(), {}, {name: b""})


class Interruption:
    """A weight whose reading fails in the middle of the file."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self) -> Any:
        raise self.error


@pytest.mark.usefixtures("temporary_files")
@pytest.mark.parametrize(
    ("error", "seen", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "LK7001"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ResourceError, "LK7001"),
        (OSError(errno.EIO, "Input/output error"), InputError, "LK1005"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (MemoryError(), MemoryError, None),
    ],
)
def test_a_failure_in_the_middle_leaves_everything_as_it_was(
    tmp_path: Path, error: BaseException, seen: type[BaseException], code: str | None
) -> None:
    path = write_tanh_of_sum(tmp_path / "model.lk")
    before = path.read_bytes()
    source = TensorSource(np.dtype(np.uint8), (10,), Interruption(error))
    with pytest.raises(seen) as caught:
        write(path, z=source)
    assert getattr(caught.value, "code", None) == code
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("temporary_files")
@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_failure_at_the_end_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = write_tanh_of_sum(tmp_path / "model.lk")
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file.os, function, fail)
        with pytest.raises(ResourceError):
            write(path, w=np.zeros(3))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_really_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    script = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "from tests.support.handmade_code import *\n"
        "from lowerkit.errors import ResourceError\n"
        "try: write_artifact(sys.argv[1], tanh_of_sum_manifest(), handmade_code(), {'w': np.zeros(1 << 20)})\n"
        "except ResourceError as error: print(error.code)"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", script, str(Path(folder) / "model.lk")]
        result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        assert result.stdout.strip() == "LK7001"
        assert list(Path(folder).iterdir()) == []


@pytest.mark.usefixtures("temporary_files")
def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with replace_file(tmp_path / "new") as file:
        file.write(b"x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "new").read_bytes() == b"x"


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with replace_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("place", ["missing/model.lk", "folder", "/dev/null", "/proc/model.lk"])
def test_places_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as caught:
        write(tmp_path / place)
    assert caught.value.code == "LK1005"


def test_a_loaded_artifact_may_be_replaced(tmp_path: Path) -> None:
    path = write_tanh_of_sum(tmp_path / "model.lk")
    session = load(path)
    x = np.ones((2, 4), np.float32)
    before = session.run(x)[0]
    write(path, bias=np.zeros((8, 4), np.float32))
    np.testing.assert_array_equal(session.run(x)[0], before)
    np.testing.assert_allclose(load(path).run(x)[0], np.tanh(x), rtol=1e-6)


def test_verify_runs_the_golden_inputs(tmp_path: Path) -> None:
    report = verify_artifact(write_tanh_of_sum(tmp_path / "model.lk", golden=True))
    assert report.passed
    assert [check.elements for check in report.programs[0].golden] == [12]
    assert "as stored" in report.render()
    assert report.to_json()["passed"] is True
    (program,) = verify_artifact(write_tanh_of_sum(tmp_path / "model.lk")).programs
    assert not program.golden
    assert program.not_run == "no golden outputs inside: only the hashes were checked"


@pytest.mark.parametrize(("comparison", "passed"), [("bitwise", False), ("tolerance", True)])
def test_verify_reports_outputs_that_differ(tmp_path: Path, comparison: Any, passed: bool) -> None:
    from lowerkit.artifact.golden import golden_entries
    from lowerkit.runtimes.manifest import GoldenSpec

    path = write_tanh_of_sum(tmp_path / "model.lk")
    x = np.full((1, 4), 0.25, np.float32)
    (y,) = load(path).run(x)
    y[0, 2] += 1e-4
    manifest = changed(
        tanh_of_sum_manifest(), golden=GoldenSpec(GOLDEN_OUTPUTS_ENTRY, comparison, relative=0, absolute=2e-4)
    )
    write_artifact(
        path, manifest, handmade_code(), {"bias": bias_weight()}, golden_entries([x], {GOLDEN_OUTPUTS_ENTRY: [y]})
    )
    report = verify_artifact(path)
    assert report.passed is passed
    assert report.programs[0].golden[0].mismatches == (0 if passed else 1)
    assert report.programs[0].golden[0].largest_error == pytest.approx(1e-4, rel=1e-2)


def test_golden_tensors_that_do_not_fit_the_signature(tmp_path: Path) -> None:
    from lowerkit.artifact.golden import golden_entries

    x = np.zeros((1, 4), np.float32)
    golden = golden_entries([x, x], {GOLDEN_OUTPUTS_ENTRY: [x]})
    write_artifact(tmp_path / "m", tanh_of_sum_manifest(), handmade_code(), {"bias": bias_weight()}, golden)
    with pytest.raises(LowerkitError) as caught:
        verify_artifact(tmp_path / "m")
    assert caught.value.code == "LK8006"
