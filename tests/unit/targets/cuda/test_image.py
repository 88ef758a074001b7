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
from lowerkit.runtimes.cuda.image import CompiledKernel, Function, ImageError, Kernel, Launch, pack, unpack
from lowerkit.runtimes.cuda.tensor_maps import TensorMap
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.planned import LoopKernel
from lowerkit.targets.cuda.planner.plan import plan_region
from lowerkit.targets.cuda.ptx import compile as ptx_compile
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.ptx.compile import compile_kernels
from lowerkit.targets.cuda.ptx.emit import emit_ptx
from lowerkit.targets.cuda.ptx.link import link_regions
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import DeviceCode, LinkSettings
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor

ALONE = LinkSettings(workers=1, use_cache=False)
ROWS = tensor(["?", 8], "f32")
SOFTMAX = anchored("softmax", [ROWS], ROWS, "axis = 1 : i64, log = false")


def code(text: str = SOFTMAX, level: str = "sm_90") -> DeviceCode:
    """The region as plain loops."""
    planned = {each: plan_region(RegionView.from_text(text, "softmax")) for each in level.split(",")}
    return DeviceCode("threads", msgspec.json.encode(planned))


def without_ptxas(monkeypatch: pytest.MonkeyPatch, path: Path | None = None) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: path)
    monkeypatch.setattr(toolchain, "bundled_ptxas", lambda: None)


def test_two_functions_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ptxas(monkeypatch)
    linked = link_regions([code(), code()], ALONE)
    assert "ptxas was not found" in linked.remarks[0]
    first, second = (linked.data[at : at + size] for at, size in zip(linked.entries, linked.sizes, strict=True))
    one = unpack(first, {})
    (variant,) = one.variants
    (other,) = unpack(second, {one.digest: one.blob}).variants
    assert variant.function.launches == other.function.launches
    names = {launch.kernel for launch in variant.function.launches}
    assert len(names) == one.blob.count(b".visible .entry") == 4
    assert all(one.compiled(variant, name).ptx.count(b".target sm_90") == 1 for name in names)
    device = SimulatedCudaDevice("sm_90")
    for part in (first, second):
        device.load(np.frombuffer(part, np.uint8))
    assert len(device._kernels) == 4, "a kernel is loaded once"  # pyright: ignore[reportPrivateUsage]


def test_a_function_for_two_levels_has_a_variant_for_each() -> None:
    linked = link_regions([code(level="sm_90,sm_80")], ALONE)
    read = unpack(linked.data, {})
    assert [variant.level for variant in read.variants] == ["sm_90", "sm_80"]
    for variant in read.variants:
        name = variant.function.launches[0].kernel
        assert f".target {variant.level}".encode() in read.compiled(variant, name).ptx


def test_the_image_is_the_same_every_time() -> None:
    assert link_regions([code()], ALONE).data == link_regions([code()], ALONE).data


def image() -> bytes:
    tensor = TensorMap(0, [8, 4], [16], 0, "bf16", [8, 4], 0)
    function = Function([4], [4], [], 0, [Launch("k", [0, 1], 1, 32, maps=[tensor])])
    return pack([{"sm_90": function}], {("sm_90", "k"): CompiledKernel(Kernel(), b".version 7.8\n", b"cubin")})[0]


def described(change: str, value: object) -> bytes:
    """An image with a field of its description changed."""
    data = image()
    size = int.from_bytes(data[8:16], "little")
    document = json.loads(data[16 : 16 + size])
    place, _, field = change.rpartition(".")
    variant = document["variants"][0]
    places = {
        "": document,
        "function": variant["function"],
        "launch": variant["function"]["launches"][0],
        "kernel": variant["kernels"]["k"],
        "map": variant["function"]["launches"][0]["maps"][0],
    }
    places[place][field] = value
    text = msgspec.json.encode(document)
    return data[:8] + len(text).to_bytes(8, "little") + text + data[16 + size :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (b"\x7fELF" + image()[4:], "does not begin"),
        (image()[:40], "cannot be read"),
        (image()[:-1], "sha-256|does not fit"),
        (image()[:-1] + b"x", "sha-256"),
        (described("blob", -1), "does not fit"),
        (described("blob", 1 << 60), "does not fit"),
        (described("variants", []), "no variant"),
        (described("kernel.ptx", [0, 1 << 40]), "does not lie"),
        (described("kernel.cubin", [-1, 4]), "does not lie"),
        (described("launch.kernel", "other"), "no kernel 'other'"),
        (described("launch.nulls", 99), "99 null pointers"),
        (described("launch.shared", -1), "-1 bytes"),
        (described("launch.flops", "n"), "no dim"),
        (described("launch.pointers", [2]), "buffers"),
        (described("launch.block", 33), "blocks of 33"),
        (described("launch.block", 2048), "blocks of 2048"),
        (described("launch.blocks", ["pow", 2, 9]), "cannot be read"),
        (described("launch.blocks", "n"), "no dim"),
        (described("function.dims", "x"), "cannot be read"),
        (described("launch.maps", [{"buffer": 0, "sizes": []}]), "0 sizes, 0 strides"),
        (described("launch.maps", [{"buffer": 0, "sizes": [8]}] * 17), "17 tensor maps"),
        (described("launch.maps", 3), "cannot be read"),
        (described("map.buffer", 2), "a tensor map of buffer 2 of 2"),
        (described("map.buffer", -1), "a tensor map of buffer -1 of 2"),
        (described("map.sizes", [8, 4, 2]), "3 sizes, 1 strides and a box of 2"),
        (described("map.sizes", [8, "n"]), "no dim"),
        (described("map.sizes", [8, ["pow", 2, 9]]), "cannot be read"),
        (described("map.strides", []), "2 sizes, 0 strides"),
        (described("map.strides", [True]), "cannot be read"),
        (described("map.strides", ["n"]), "no dim"),
        (described("map.offset", "n"), "no dim"),
        (described("map.offset", [0]), "cannot be read"),
        (described("map.element", "tf32"), "elements 'tf32'"),
        (described("map.element", ""), "elements ''"),
        (described("map.span", 48), "a swizzle of 48 bytes"),
        (described("map.span", -32), "a swizzle of -32 bytes"),
        (described("map.box", [8, 257]), r"box of \[8, 257\]"),
        (described("map.box", [0, 4]), r"box of \[0, 4\]"),
        (described("map.box", [4, 4]), r"box of \[4, 4\]"),  # 8 bytes
        (described("map.box", [8, 4, 1]), "a box of 3"),
        (described("map.box", [1 << 70, 4]), "box of|cannot be read"),
    ],
)
def test_bytes_that_were_changed_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        unpack(data, {})


def test_a_box_wider_than_its_swizzle() -> None:
    tensor = TensorMap(0, [64, 4], [128], 0, "bf16", [64, 4], 64)
    function = Function([512], [4], [], 0, [Launch("k", [0, 1], 1, 32, maps=[tensor])])
    data, _ = pack([{"sm_90": function}], {("sm_90", "k"): CompiledKernel(Kernel(), b"", b"")})
    with pytest.raises(ImageError, match=r"box of \[64, 4\] and a swizzle of 64 bytes"):
        unpack(data, {})


def test_tensor_maps_there_and_back() -> None:
    dim = ("dim", 0)
    tensors = [
        TensorMap(0, [8, dim, ("mul", dim, 2)], [16, ("mul", dim, 16)], ("mul", dim, 32), "f32", [4, 256, 1], 32),
        TensorMap(1, [("ceildiv", dim, 8)], [], 0, "u8", [16], 0),
    ]
    launch = Launch("k", [0, 1], 1, 32, maps=tensors, asked="{}")
    function = Function([dim], [4], [], 1, [launch])
    data, _ = pack([{"sm_90": function}], {("sm_90", "k"): CompiledKernel(Kernel(), b"", b"")})
    (variant,) = unpack(data, {}).variants
    assert variant.function.launches == [launch]


def test_a_kernel_that_is_not_there() -> None:
    function = Function([4], [4], [], 0, [Launch("nowhere", [0, 1], 1, 32)])
    ptx = b".version 7.8\n.target sm_90\n.address_size 64\n"
    data, _ = pack([{"sm_90": function}], {("sm_90", "nowhere"): CompiledKernel(Kernel(), ptx, b"")})
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
    without_ptxas(monkeypatch, refusing)
    with pytest.raises(CodegenError, match=r"LK5001.*ptxas 9\.9 does not take a kernel for sm_90") as caught:
        link_regions([code()], ALONE)
    assert list(caught.value.details) == ["line 7: no"]
    assert caught.value.hint is not None and ".ptx" in caught.value.hint


def test_a_level_that_ptxas_does_not_know_is_left_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = script(tmp_path, 'case "$1" in --version) echo release 9.8;; *) echo sm_75;; esac')
    without_ptxas(monkeypatch, old)
    linked = link_regions([code()], ALONE)
    assert linked.remarks == ["ptxas 9.8 does not know sm_90: the image holds PTX alone for it"]
    read = unpack(linked.data, {})
    assert all(read.compiled(read.variants[0], name).cubin == b"" for name in read.variants[0].kernels)


def test_ptx_that_is_none_is_refused_by_ptxas() -> None:
    assembler = ptxas.find_ptxas()
    if assembler is None:
        pytest.skip("there is no ptxas")
    with pytest.raises(CodegenError, match="does not take"):
        ptxas.assemble(assembler, ".version 7.8\n.target sm_90\n.address_size 64\nnonsense", "sm_90")


ROOT = """module {
  func.func @k(%p: !llvm.ptr) {
    %x = llvm.load %p : !llvm.ptr -> f64
    %y = math.sqrt %x : f64
    llvm.store %y, %p : f64, !llvm.ptr
    return
  }
}"""
GAMMA = """module {
  func.func private @lgamma(f64) -> f64
  func.func @gamma_1(%p: !llvm.ptr) {
    %x = llvm.load %p : !llvm.ptr -> f64
    %y = func.call @lgamma(%x) : (f64) -> f64
    llvm.store %y, %p : f64, !llvm.ptr
    return
  }
}"""


def test_what_the_gpu_has_no_code_for_is_an_error_not_a_crash() -> None:
    with pytest.raises(CodegenError, match=r"there is no code for the GPU for lgamma"):
        emit_ptx(GAMMA, "sm_90")
    with pytest.raises(CodegenError, match=r"the kernel gamma_1 could not be compiled for the GPU"):
        compiled("gamma_1", GAMMA)


def compiled(name: str, text: str, level: str = "sm_90", cache: KernelCache | None = None) -> ptx_compile.Compiled:
    return compile_kernels({(level, name): LoopKernel(text)}, ALONE, cache, {})[level, name]


def test_a_compiler_that_dies_fails_its_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx_compile, "EMIT_TASK", "tests.unit.test_worker_process:crash")
    with pytest.raises(CodegenError, match=r"the kernel k could not be compiled.*died \(signal SIGSEGV"):
        compiled("k", "module {}")


def test_known_kernels_come_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)
    first = compiled("k", ROOT, cache=cache)
    monkeypatch.setattr(ptx_compile, "EMIT_TASK", "tests.unit.test_worker_process:crash")
    assert compiled("k", ROOT, cache=cache) == first
    with pytest.raises(CodegenError):
        compiled("k", ROOT, "sm_80", cache)
