"""Tensor maps: what encode_tiled makes is what tensormap.replace makes, and what neither may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu, encode_tiled
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import BadTensorMap, TensorMap, decode, swizzled
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel

ADDRESS = 0x7000_0000_0100
# Of the driver's numbers for types: bf16.
BF16 = 9


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_there_and_back(rank: int) -> None:
    sizes, box = (100, 7, 6, 5, 4)[:rank], (64, 3, 2, 1, 4)[:rank]
    strides = (208, 1456, 8736, 43680)[: rank - 1]
    raw = encode_tiled(ADDRESS, sizes, strides, box, element=BF16, swizzle=3)
    assert len(raw) == 128
    found = decode(np.frombuffer(raw, np.uint8))
    assert found == TensorMap(ADDRESS, "bf16", sizes, (2, *strides), box, 128)
    assert found.element_bytes == 2


@pytest.mark.parametrize(
    ("element", "name"),
    [
        (0, "u8"),
        (1, "u16"),
        (2, "u32"),
        (3, "s32"),
        (4, "u64"),
        (5, "s64"),
        (6, "f16"),
        (7, "f32"),
        (8, "f64"),
        (9, "bf16"),
    ],
)
def test_types_as_the_driver_numbers_them(element: int, name: str) -> None:
    raw = encode_tiled(ADDRESS, (64, 2), (512,), (16, 2), element=element)
    assert decode(np.frombuffer(raw, np.uint8)).element == name


def test_swizzles_exchange_pieces_of_a_row() -> None:
    places = np.arange(0, 1024, 16)
    for span, pieces in ((128, 8), (64, 4), (32, 2), (16, 1)):
        found = swizzled(places, span)
        assert (np.sort(found) == places).all()
        assert (found // span == places // span).all()
        assert (found // 16 % pieces == places // 16 % pieces ^ places // 128 % pieces).all()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": ADDRESS + 8}, "is not a multiple of 16"),
        ({"strides": (200,)}, "are not multiples of 16"),
        ({"strides": (1 << 40,)}, "below 2\\^40"),
        ({"box": (64, 0)}, "a box of"),
        ({"box": (64, 257)}, "a box of"),
        ({"sizes": (0, 8)}, "in a tensor of"),
        ({"sizes": (1 << 32, 8)}, "global_dim 4294967296"),
        ({"box": (4, 8)}, "a box of 8 bytes in its innermost"),
        ({"box": (32, 8)}, "a box of 64 bytes in its innermost dimension with a swizzle of 128"),
        ({"element": 10}, "element type 8 is not known"),
        ({"element": 13}, "element type 13 is not known"),
        ({"swizzle": 4}, "swizzle"),
        ({"interleave": 1}, "interleaving"),
        ({"fill": 1}, "fill"),
        ({"element_strides": (1, 2)}, "element strides"),
        ({"strides": ()}, "a tensor map of 2 sizes, 0 strides"),
    ],
)
def test_what_is_no_tensor_map(change: dict[str, Any], problem: str) -> None:
    values: dict[str, Any] = {"sizes": (100, 8), "strides": (208,), "box": (64, 8), "element": BF16, "swizzle": 3}
    values |= change
    with pytest.raises(KernelFault, match=problem):
        encode_tiled(values.pop("address", ADDRESS), **values)


def test_zeros_are_none() -> None:
    with pytest.raises(BadTensorMap):
        decode(np.zeros(128, np.uint8))


FIELDS = [
    "global_address.{}.b1024.b64 [%a], %v", "rank.{}.b1024.b32 [%a], 2", "elemtype.{}.b1024.b32 [%a], 10",
    "swizzle_mode.{}.b1024.b32 [%a], 3", "interleave_layout.{}.b1024.b32 [%a], 0", "fill_mode.{}.b1024.b32 [%a], 0",
    *(f"box_dim.{{}}.b1024.b32 [%a], {number}, {size}" for number, size in enumerate((64, 3, 2))),
    *(f"global_dim.{{}}.b1024.b32 [%a], {number}, {size}" for number, size in enumerate((100, 7, 6))),
    *(f"global_stride.{{}}.b1024.b64 [%a], {number}, {size}" for number, size in enumerate((208, 1456))),
    *(f"element_stride.{{}}.b1024.b32 [%a], {number}, 1" for number in range(3)),
]  # fmt: skip


@pytest.mark.parametrize("space", ["shared::cta", "global"])
def test_field_by_field(space: str) -> None:
    """In shared memory, then copied by a warp; or in global memory itself."""
    edits = "\n".join(f"tensormap.replace.tile.{field.format(space)};" for field in FIELDS)
    body = f"""
      .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %a; .reg .b64 %v; .reg .b64 %o; .reg .b64 %x;
      .shared .align 128 .b8 map[128];
      mov.u32 %r0, %tid.x; mov.u64 %a, map; ld.param.u64 %v, [tensor]; ld.param.u64 %o, [out];
      {"mov.u64 %a, %o;" if space == "global" else ""}
      shl.b32 %r1, %r0, 2; cvt.u64.u32 %x, %r1; add.u64 %x, %x, %a; mov.u32 %r2, 0;
      st.{space}.u32 [%x], %r2; bar.warp.sync -1; setp.ne.u32 %p, %r0, 0; @%p bra $there;
      {edits}
    $there: bar.warp.sync -1;
    """
    if space != "global":
        body += (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%o], [%a], 128;"
        )
    ptx = kernel(body + "ret;", ".param .u64 tensor, .param .u64 out")
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
    out = gpu.allocate(128)
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [32], [ADDRESS, out])
    expected = encode_tiled(ADDRESS, (100, 7, 6), (208, 1456), (64, 3, 2), element=BF16, swizzle=3)
    assert gpu.read(out, 128).tobytes() == expected


@pytest.mark.parametrize(
    "instruction",
    [
        "tensormap.replace.tile.box_dim.global.b1024.b32 [%a], 5, 1",
        "tensormap.replace.tile.global_stride.global.b1024.b64 [%a], 4, 16",
        "tensormap.replace.tile.rank.global.b1024.b64 [%a], 1",
        "tensormap.replace.tile.colour.global.b1024.b32 [%a], 1",
        "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%a], 1",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%a], [%a], 64",
    ],
)
def test_forms_that_are_not_known(instruction: str) -> None:
    with pytest.raises(UnknownPtx, match="is not known|is missing"):
        SimulatedGpu().load(kernel(f".reg .b64 %a; {instruction}; ret;"))


def test_a_tensor_map_is_looked_at_before_it_is_used() -> None:
    body = ".reg .b64 %a; mov.u64 %a, map; cvta.param.u64 %a, %a; prefetch.tensormap [%a]; ret;"
    ptx = kernel(body, ".param .align 64 .b8 map[128]")
    assemble(ptx)
    gpu = SimulatedGpu()
    loaded = gpu.load(ptx).kernels["k"]
    raw = encode_tiled(ADDRESS, (64, 8), (128,), (64, 8), element=BF16)
    gpu.launch(loaded, [1], [1], [raw])
    with pytest.raises(KernelFault, match="takes a tensor map from 0x400000000000: element type 255 is not known"):
        gpu.launch(loaded, [1], [1], [raw[:108] + b"\xff" + raw[109:]])
