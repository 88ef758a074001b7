"""The image of an artifact: packed, read again, and refused where its bytes were changed; ptxas and its answers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from lowerkit.errors import CodegenError
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.image import Function, ImageError, Launch, pack, unpack
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.ptx import compile as ptx_compile
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.ptx.compile import compile_to_ptx
from lowerkit.targets.cuda.ptx.emit import emit_ptx
from lowerkit.targets.cuda.ptx.link import join_modules, link_regions
from lowerkit.targets.cuda.target import CudaTarget
from lowerkit.targets.plan import DeviceCode, LinkSettings
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor

ALONE = LinkSettings(workers=1, use_cache=False)
ROWS = tensor(["?", 8], "f32")
SOFTMAX = anchored("softmax", [ROWS], ROWS, "axis = 1 : i64, log = false")


def code(text: str = SOFTMAX) -> DeviceCode:
    made = CudaTarget("sm_90").compile(RegionView.from_text(text, "softmax"))
    assert isinstance(made, DeviceCode)
    return made


def test_two_functions_share_kernels_and_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    linked = link_regions([code(), code()], "sm_90", ALONE)
    assert "ptxas was not found" in linked.remarks[0]
    first, second = (linked.data[at : at + size] for at, size in zip(linked.entries, linked.sizes, strict=True))
    one = unpack(first, {})
    assert one.function.launches == unpack(second, {one.modules.digest: (one.ptx, one.cubin)}).function.launches
    text = one.ptx.decode()
    assert text.count(".visible .entry") == len({launch.kernel for launch in one.function.launches}) == 4
    assert text.count(".target sm_90") == text.count(".version") == 1
    device = SimulatedCudaDevice("sm_90")
    for part in (first, second):
        device.load(np.frombuffer(part, np.uint8))
    assert len(device._loaded) == 1, "the modules are loaded once"  # pyright: ignore[reportPrivateUsage]


def test_the_image_is_the_same_every_time() -> None:
    assert link_regions([code()], "sm_80", ALONE).data == link_regions([code()], "sm_80", ALONE).data


def image() -> bytes:
    function = Function([4], [4], [], 0, [Launch("k", [0, 1], 1, 32)])
    return pack([function], "sm_90", b".version 7.8\n", b"cubin")[0]


def described(change: str, value: object) -> bytes:
    """An image with a field of its description changed."""
    data = image()
    size = int.from_bytes(data[8:16], "little")
    document = json.loads(data[16 : 16 + size])
    place, _, field = change.rpartition(".")
    target = document["function"]["launches"][0] if place == "launch" else document[place]
    target[field] = value
    text = msgspec.json.encode(document)
    return data[:8] + len(text).to_bytes(8, "little") + text + data[16 + size :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (b"\x7fELF" + image()[4:], "does not begin"),
        (image()[:40], "cannot be read"),
        (image()[:-1], "sha-256|do not fit"),
        (image()[:-1] + b"x", "sha-256"),
        (described("modules.ptx", -1), "do not fit"),
        (described("modules.ptx", 1 << 60), "do not fit"),
        (described("launch.pointers", [2]), "buffers"),
        (described("launch.block", 33), "blocks of 33"),
        (described("launch.block", 2048), "blocks of 2048"),
        (described("launch.threads", ["pow", 2, 9]), "cannot be read"),
        (described("launch.threads", "n"), "no dim"),
        (described("function.dims", "x"), "cannot be read"),
    ],
)
def test_bytes_that_were_changed_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        unpack(data, {})


def test_a_kernel_that_is_not_there() -> None:
    function = Function([4], [4], [], 0, [Launch("nowhere", [0, 1], 1, 32)])
    ptx = b".version 7.8\n.target sm_90\n.address_size 64\n"
    data, _ = pack([function], "sm_90", ptx, b"")
    with pytest.raises(ImageError, match="no kernel 'nowhere'"):
        SimulatedCudaDevice("sm_90").load(np.frombuffer(data, np.uint8))


def script(folder: Path, text: str) -> Path:
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_what_ptxas_does_not_take_is_an_error_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = script(
        tmp_path,
        'case "$1" in --help) echo sm_90;; --version) echo release 9.9;; *) echo line 7: no >&2; exit 255;; esac',
    )
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: refusing)
    with pytest.raises(CodegenError, match=r"LK5001.*ptxas 9\.9 does not take the kernels for sm_90") as caught:
        link_regions([code()], "sm_90", ALONE)
    assert list(caught.value.details) == ["line 7: no"]
    assert caught.value.hint is not None and ".ptx" in caught.value.hint


def test_a_level_that_ptxas_does_not_know_is_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = script(tmp_path, 'case "$1" in --version) echo release 9.8;; *) echo sm_75;; esac')
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: old)
    linked = link_regions([code()], "sm_90", ALONE)
    assert linked.remarks == ["ptxas 9.8 does not know sm_90: the image holds PTX alone"]
    assert unpack(linked.data, {}).cubin == b""


def test_ptx_that_is_none_is_refused_by_ptxas() -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas")
    with pytest.raises(CodegenError, match="does not take"):
        ptxas.assemble(assembler, ".version 7.8\n.target sm_90\n.address_size 64\nnonsense", "sm_90")


EXPONENTIAL = """module {
  func.func @exp_1(%p: !llvm.ptr) {
    %x = llvm.load %p : !llvm.ptr -> f64
    %y = math.exp %x : f64
    llvm.store %y, %p : f64, !llvm.ptr
    return
  }
}"""


def test_what_the_gpu_has_no_code_for_is_an_error_not_a_crash() -> None:
    with pytest.raises(CodegenError, match=r"there is no code for the GPU for .*exp"):
        emit_ptx(EXPONENTIAL, "sm_90")
    with pytest.raises(CodegenError, match=r"the kernel exp_1 could not be compiled for the GPU"):
        compile_to_ptx({"exp_1": EXPONENTIAL}, "sm_90", ALONE, None)


def test_a_compiler_that_dies_fails_its_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx_compile, "EMIT_TASK", "tests.unit.test_worker_process:crash")
    with pytest.raises(CodegenError, match=r"the kernel k could not be compiled.*died \(signal SIGSEGV"):
        compile_to_ptx({"k": "module {}"}, "sm_90", ALONE, None)


def test_known_kernels_come_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)
    kernels = {"k": EXPONENTIAL.replace("math.exp", "math.sqrt").replace("exp_1", "k")}
    first = compile_to_ptx(kernels, "sm_90", ALONE, cache)
    monkeypatch.setattr(ptx_compile, "EMIT_TASK", "tests.unit.test_worker_process:crash")
    assert compile_to_ptx(kernels, "sm_90", ALONE, cache) == first
    with pytest.raises(CodegenError):
        compile_to_ptx(kernels, "sm_80", ALONE, cache)


def test_modules_are_joined_under_one_header() -> None:
    header = "//\n// Generated\n//\n\n.version 7.8\n.target sm_90\n.address_size 64\n\n"
    joined = join_modules({"b": f"{header}\t// .globl b\n.visible .entry b()\n{{\n}}\n", "a": f"{header}entry a\n"})
    assert joined.index("entry a") < joined.index("entry b")
    assert joined.startswith(".version 7.8\n.target sm_90\n.address_size 64\n")
    assert join_modules({}) == ""
