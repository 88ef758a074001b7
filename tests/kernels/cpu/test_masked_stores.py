"""Stores of the first lanes of a vector touch no other bytes, whatever was narrowed before them."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.kernel_text import Buffer, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode
from tests.support.kernels import LEVELS

UNTOUCHED = 0x5A
BYTES = {"i8": 1, "i16": 2, "bf16": 2, "f16": 2, "f32": 4}


def narrowed(text: KernelText, value: Value, element: str) -> Value:
    if element.startswith("i"):
        return text.cast("arith.trunci", text.cast("arith.fptosi", value, "i32"), element)
    return text.narrow(value, element)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", BYTES)
def test_the_first_lanes_alone_are_stored(element: str, level: str) -> None:
    cpu = cpu_features(level)
    lanes = cpu.lanes(32)
    text = KernelText()
    for number in range(2):
        text.lines.append(abi.load_pointer(f"pointer{number}", number).rstrip("\n"))
    source, target = (
        Buffer(Value(f"%pointer{number}", "!llvm.ptr"), kind) for number, kind in enumerate(["f32", "i8"])
    )
    width = BYTES[element] * lanes
    for count in range(lanes + 1):  # each into a place of its own, with as much behind it
        place = text.offset(target.pointer, 2 * width * count, "i8")
        text.store(narrowed(text, text.read(source, lanes * count, lanes), element), place, text.mask(count, lanes))
    given = (np.arange(lanes * (lanes + 1), dtype=np.float32) % 127 - 63).reshape(lanes + 1, lanes)
    out = np.full(2 * width * (lanes + 1), UNTOUCHED, np.uint8)
    call, _ = LoadedKernel(DeviceCode("test", abi.kernel_module(text.text())), cpu).bind([given, out])
    call(0, 1)
    for count, row in enumerate(out.reshape(lanes + 1, 2 * width)):
        end = count * BYTES[element]
        assert (row[end:] == UNTOUCHED).all(), f"{count} lanes"
        stored = row[:end].view({1: np.int8, 2: np.int16, 4: np.float32}[BYTES[element]])
        if element == "bf16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        elif element == "f16":
            stored = stored.view(np.float16)
        assert (stored == given[count, :count]).all()
