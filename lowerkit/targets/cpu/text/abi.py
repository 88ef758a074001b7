"""The kernel ABI as MLIR text: from raw pointers to typed memrefs and index values.

``void kernel(void *const *buffers, const int64_t *dims, int64_t task_begin, int64_t task_end, void *scratch)``

``buffers`` holds operands then results, ``dims`` the dynamic dims of the operands then of the results, in order. A
memref is made from a pointer by building LLVM's descriptor struct and casting it (``unrealized_conversion_cast``
vanishes when the memref type is converted); nothing of the prologue is left after LLVM's first simplification.

``i1`` tensors are stored one byte per element: :func:`stored_type` gives the element type to load and store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KERNEL = "kernel"
SIGNATURE = (
    "func.func @kernel(%buffers: !llvm.ptr, %dims: !llvm.ptr, %task_begin: i64, %task_end: i64, %scratch: !llvm.ptr)"
)


@dataclass(frozen=True)
class Shaped:
    """Shape and element type of a kernel buffer; None is a dynamic dim."""

    shape: tuple[int | None, ...]
    element: str

    @property
    def memref(self) -> str:
        """Returns the memref type with identity layout."""
        dims = "".join(f"{'?' if extent is None else extent}x" for extent in self.shape)
        return f"memref<{dims}{self.element}>"


def stored_type(element: str) -> str:
    """Returns the element type in memory: ``i8`` for ``i1``, else ``element`` itself."""
    return "i8" if element == "i1" else element


def kernel_module(body: str, helpers: str = "") -> str:
    """Returns the module text with ``body`` as the kernel (its ``return`` is added) and private ``helpers``."""
    return f"module {{\n{helpers}{SIGNATURE} {{\n{body}  return\n}}\n}}\n"


def load_pointer(name: str, index: int, table: str = "%buffers") -> str:
    """Returns text that defines ``%name`` as the ``index``-th pointer of ``table``."""
    slot = f"%{name}_slot"
    return (
        f"  {slot} = llvm.getelementptr {table}[{index}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr\n"
        f"  %{name} = llvm.load {slot} : !llvm.ptr -> !llvm.ptr\n"
    )


def load_dim(name: str, index: int) -> str:
    """Returns text that defines ``%name`` (i64) and ``%name_index`` (index) as the ``index``-th kernel dim."""
    return (
        f"  %{name}_slot = llvm.getelementptr %dims[{index}] : (!llvm.ptr) -> !llvm.ptr, i64\n"
        f"  %{name} = llvm.load %{name}_slot : !llvm.ptr -> i64\n"
        f"  %{name}_index = arith.index_cast %{name} : i64 to index\n"
    )


def memref_from_pointer(name: str, pointer: str, shape: Sequence[int | str], element: str) -> tuple[str, str]:
    """Returns ``(text, type)``: text that defines ``%name`` as a row-major memref at ``pointer``.

    Args:
        name: SSA name without percent sign.
        pointer: SSA value of type ``!llvm.ptr``.
        shape: ints, or SSA names of ``i64`` values.
        element: element type in memory, see :func:`stored_type`.
    """
    rank = len(shape)
    type_text = Shaped(tuple(extent if isinstance(extent, int) else None for extent in shape), element).memref
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    struct = f"!llvm.struct<(ptr, ptr, i64{arrays})>"
    lines: list[str] = []
    constants: dict[int, str] = {}

    def constant(value: int) -> str:
        if value not in constants:
            constants[value] = f"%{name}_c{value}"
            lines.append(f"  {constants[value]} = llvm.mlir.constant({value} : i64) : i64")
        return constants[value]

    sizes = [extent if isinstance(extent, str) else constant(extent) for extent in shape]
    strides: list[str] = []
    running: int | str = 1
    for axis in range(rank - 1, -1, -1):
        strides.append(constant(running) if isinstance(running, int) else running)
        extent = shape[axis]
        if axis == 0:
            break
        if isinstance(running, int) and isinstance(extent, int):
            running *= extent
        else:
            left = constant(running) if isinstance(running, int) else running
            product = f"%{name}_stride{axis}"
            lines.append(f"  {product} = llvm.mul {left}, {sizes[axis]} : i64")
            running = product
    strides.reverse()
    positions = [("0", pointer), ("1", pointer), ("2", constant(0))]
    positions += [(f"3, {axis}", size) for axis, size in enumerate(sizes)]
    positions += [(f"4, {axis}", stride) for axis, stride in enumerate(strides)]
    lines.append(f"  %{name}_d0 = llvm.mlir.poison : {struct}")
    for number, (position, value) in enumerate(positions):
        lines.append(f"  %{name}_d{number + 1} = llvm.insertvalue {value}, %{name}_d{number}[{position}] : {struct}")
    lines.append(f"  %{name} = builtin.unrealized_conversion_cast %{name}_d{len(positions)} : {struct} to {type_text}")
    return "\n".join(lines) + "\n", type_text


@dataclass(frozen=True)
class Prologue:
    """What :func:`prologue` wrote.

    Attributes:
        text: the lines.
        buffers: SSA names of the memrefs, operands then results.
        types: their memref types.
        dims: SSA names of the kernel dims as ``index``.
    """

    text: str
    buffers: tuple[str, ...]
    types: tuple[str, ...]
    dims: tuple[str, ...]


def prologue(buffers: Sequence[Shaped], stored: Sequence[Shaped] | None = None) -> Prologue:
    """Returns the text that turns every kernel buffer into a memref ``%buffer0``, ``%buffer1``, ...

    Args:
        buffers: operands then results as the region has them: their dynamic dims number the kernel dims.
        stored: what lies in memory where it differs (a packed weight); only static shapes may differ.
    """
    text: list[str] = []
    dims: list[str] = []
    names: list[str] = []
    types: list[str] = []
    for index, shaped in enumerate(buffers):
        shape: list[int | str] = []
        for extent in shaped.shape:
            if extent is None:
                number = len(dims)
                text.append(load_dim(f"dim{number}", number))
                dims.append(f"%dim{number}_index")
                shape.append(f"%dim{number}")
            else:
                shape.append(extent)
        element = stored_type(shaped.element)
        if stored is not None and stored[index] != shaped:
            assert None not in stored[index].shape, "only a static buffer can be stored in another layout"
            shape = list[int | str](extent or 0 for extent in stored[index].shape)
            element = stored_type(stored[index].element)
        text.append(load_pointer(f"pointer{index}", index))
        lines, type_text = memref_from_pointer(f"buffer{index}", f"%pointer{index}", shape, element)
        text.append(lines)
        names.append(f"%buffer{index}")
        types.append(type_text)
    return Prologue("".join(text), tuple(names), tuple(types), tuple(dims))
