"""Each call of libcuda against NVIDIA's header: how many arguments, of which types, and the layout of structures."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda import driver_errors, launch_memory, libcuda
from lowerkit.runtimes.cuda.driver import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.driver_library import DriverLibrary
from lowerkit.runtimes.cuda.launch_memory import LaunchAttribute, LaunchConfig
from lowerkit.runtimes.cuda.tensor_maps import ELEMENT_NUMBERS, SWIZZLES
from tests.support.cuda.fake_driver import Fake, header

_PROTOTYPE = re.compile(r"^\s*CUresult CUDAAPI (\w+)\(([^;]*?)\);", re.MULTILINE)
_RENAMED = re.compile(r"^\s*#\s*define (cu\w+)\s+(?:__CUDA_API_PT[SD][SZ]\()?(cu\w+?)\)?$", re.MULTILINE)
_HANDLES = ("CUcontext", "CUstream", "CUmodule", "CUfunction", "CUevent", "CUgraph", "CUgraphExec")
_VALUES: dict[str, Any] = {
    "int": ctypes.c_int, "unsigned int": ctypes.c_uint, "size_t": ctypes.c_size_t, "CUdevice": ctypes.c_int,
    "CUdeviceptr": ctypes.c_uint64, "unsigned long long": ctypes.c_uint64, "cuuint32_t": ctypes.c_uint32,
    "cuuint64_t": ctypes.c_uint64, "float": ctypes.c_float, "char": ctypes.c_char,
    **dict.fromkeys(_HANDLES, ctypes.c_void_p),
}  # fmt: skip
_STRUCTURES: dict[str, Any] = {"CUlaunchConfig": LaunchConfig}
_ENUMS = re.compile(r"^CU(result|device_attribute|function_attribute|jit_option|stream\w+|tensorMap\w+)$")


@cache
def prototypes() -> dict[str, list[str]]:
    """The types of the parameters of each function, by the name that the library exports."""
    text = re.sub(r"/\*.*?\*/", " ", header().read_text(errors="replace"), flags=re.DOTALL)
    renamed = dict(_RENAMED.findall(text))
    found: dict[str, list[str]] = {}
    for name, parameters in _PROTOTYPE.findall(text):
        types = [] if parameters.strip() == "void" else [_type(each) for each in parameters.split(",")]
        for each in (renamed.get(name, name), name):  # the first version under its own name, as it still is exported
            found.setdefault(each, types)
    return found


def _type(parameter: str) -> str:
    words = re.sub(r"\bconst\b", " ", parameter.replace("*", " * ")).split()
    return " ".join(words[:-1]).replace(" *", "*")


def fits(argument: Any, type_: str) -> bool:
    """Returns whether a value of ctypes has a type of C."""
    if _ENUMS.match(type_):
        return isinstance(argument, ctypes.c_int)
    if not type_.endswith("*"):
        return type(argument) is _VALUES[type_]
    if argument is None or type(argument) is ctypes.c_void_p:
        return True  # an address: of what nobody can say
    pointed = type_.removesuffix("*")
    if pointed == "void*" or pointed in _HANDLES:
        wanted: Any = ctypes.c_void_p
    elif pointed == "void":
        return isinstance(argument, ctypes.c_char_p)
    elif pointed == "char" and isinstance(argument, ctypes.c_char_p):
        return True
    elif _ENUMS.match(pointed):
        wanted = ctypes.c_int
    else:
        wanted = {**_VALUES, "char*": ctypes.c_char_p, **_STRUCTURES}[pointed]
    if isinstance(argument, ctypes.Array):
        return getattr(type(argument), "_type_", None) is wanted
    return type(getattr(argument, "_obj", None)) is wanted


def called_names(*modules: Any) -> set[str]:
    """The functions that modules name in calls."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.fullmatch(r"cu[A-Z]\w+", node.value)
            ):
                found.add(node.value)
            if isinstance(node, ast.Attribute) and re.fullmatch(r"cu[A-Z]\w+", node.attr):
                found.add(node.attr)
    return found


def recorded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[Any]]]:
    """Every kind of call that the driver makes, with its arguments."""
    calls: list[tuple[str, Sequence[Any]]] = []
    right = DriverLibrary.call

    def call(self: DriverLibrary, name: str, *arguments: Any) -> None:
        calls.append((name, arguments))
        right(self, name, *arguments)

    monkeypatch.setattr(DriverLibrary, "call", call)
    driver = fake.open()
    memory, other = driver.allocate(256), driver.allocate(256)
    data = np.zeros(256, np.uint8)
    driver.write(memory, data, 0)
    driver.copy(other, memory, 256, 0)
    driver.read(data, other, 0)
    driver.load(b".version 7.8", b"cubin", "sm_90")
    kernel = driver.kernel(driver.load(b".version 7.8", b"", "sm_90"), "k")
    buffer = LaunchBuffer(memory, 256, "operand 0")
    tensor = driver.prepared(LaunchTensorMap(buffer, (8, 4), (32,), (8, 4), 9))
    for early in (False, True):
        driver.launch(kernel, 1, 32, 60 << 10, [buffer, tensor, 3], 0, early=early)
    driver.wait(driver.record(0), 1)
    driver.seconds_between(driver.mark(0), driver.mark(0))
    driver.begin_capture(0)
    graph = driver.end_capture(0)
    driver.launch_graph(graph, 0)
    driver.destroy_graph(graph)
    driver.synchronize(0)
    driver.free(other)
    driver.close()
    return calls


def test_every_argument_has_the_type_that_the_header_says(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(fake, monkeypatch)
    for name, arguments in calls:
        types = prototypes()[name]
        assert len(arguments) == len(types), f"{name} takes {types}"
        for number, (argument, type_) in enumerate(zip(arguments, types, strict=True)):
            assert fits(argument, type_), f"argument {number} of {name} is {type(argument)}, not {type_}"
    named = called_names(libcuda, launch_memory)
    assert named == {name for name, _ in calls} | {"cuCtxSetCurrent"}, "no call is left out"
    assert len(named) > 30
    assert called_names(driver_errors) - named == {"cuGetErrorName", "cuGetErrorString"}


def test_the_table_of_types_tells_them_apart() -> None:
    assert prototypes()["cuMemAlloc_v2"] == ["CUdeviceptr*", "size_t"]
    assert prototypes()["cuEventElapsedTime"] == ["float*", "CUevent", "CUevent"]
    assert fits(ctypes.byref(ctypes.c_uint64()), "CUdeviceptr*")
    assert not fits(ctypes.byref(ctypes.c_int()), "CUdeviceptr*")
    assert not fits(ctypes.c_int(1), "size_t")
    assert not fits(ctypes.c_uint(1), "int")
    assert not fits((ctypes.c_uint64 * 2)(), "cuuint32_t*")
    assert not fits(ctypes.c_uint64(1), "CUstream")
    assert not fits(ctypes.c_uint(1), "CUstreamCaptureMode")


def test_structures_lie_as_in_the_header(fake: Fake) -> None:
    fake.library.fake_layouts.restype = ctypes.POINTER(ctypes.c_size_t)
    places = [
        getattr(LaunchConfig, name).offset for name in ("grid_x", "block_x", "shared", "stream", "attributes", "count")
    ]
    own = [
        ctypes.sizeof(LaunchConfig), *places, ctypes.sizeof(LaunchAttribute),
        LaunchAttribute.id.offset, LaunchAttribute.value.offset,
        launch_memory.TENSOR_MAP_BYTES, launch_memory.TENSOR_MAP_ALIGNMENT, launch_memory.SERIALIZED_BY_PROGRAM,
        launch_memory.L2_128_BYTES, *ELEMENT_NUMBERS.values(), *SWIZZLES.values(),
    ]  # fmt: skip
    assert fake.library.fake_layouts()[: len(own)] == own
