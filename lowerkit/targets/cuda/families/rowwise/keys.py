"""Keys of elements, what is sorted in their place, and the results of a sort: values and where they stood.

Vocabulary
    key      an integer that is in order where the elements are: NaN is the largest, both zeros are one; of 32 bits, of
             64 for elements of 64
    item     ``key << 32 | position`` of a key of 32 bits: items are never equal, so every way to sort them is stable
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion
from lowerkit.targets.cuda.triton.scalars import converted
from lowerkit.targets.cuda.triton.tensors import Axis, load, offset_text, store
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.plan import KernelExpr

WIDE = ("i64", "f64")
"""Elements whose keys have 64 bits."""
NOTHING = 2**63 - 1
"""An item behind all others."""
_LARGEST = {32: 2**31 - 1, 64: 2**63 - 1}


@dataclass(frozen=True)
class Order:
    """What is wanted of the rows of a region.

    Attributes:
        found: the region.
        axis: along which its rows run.
        descending: the largest first.
        wanted: so many of the first elements.
    """

    found: RowRegion
    axis: int
    descending: bool
    wanted: int

    @property
    def length(self) -> KernelExpr:
        """Elements of a row."""
        return self.found.source.sizes[self.axis]

    @property
    def kept(self) -> tuple[int, ...]:
        """The other dims."""
        return tuple(axis for axis in range(len(self.found.source.sizes)) if axis != self.axis)

    @property
    def wide(self) -> bool:
        """Whether keys have 64 bits."""
        return self.found.source.element in WIDE

    def row(self, text: str) -> Axis:
        """Returns the number of a row as an axis."""
        return Axis(text, self.kept, tuple(self.found.source.sizes[axis] for axis in self.kept))

    def along(self, text: str) -> Axis:
        """Returns positions in a row as an axis."""
        return Axis(text, (self.axis,), (self.length,))

    def keys(self, writer: KernelWriter, row: Axis, positions: str, mask: str | None) -> str:
        """Writes the keys of elements; what is not there has any."""
        source = self.found.source
        at = offset_text(writer, source.strides, source.offset, [row, self.along(positions)])
        value = load(writer, source, writer.let(at, "at"), mask, "0")
        return key_of(writer, value, source.element, self.descending)

    def write(self, writer: KernelWriter, row: Axis, places: str, positions: str, mask: str | None) -> None:
        """Writes the elements that stood at ``positions`` to the ``places`` of the results."""
        write_ordered(writer, self.found, [row, self.along(places)], [row, self.along(positions)], positions, mask)


def key_of(writer: KernelWriter, value: str, element: str, descending: bool) -> str:
    """Writes the keys of values; of 32 bits, of 64 for elements of 64."""
    width = 64 if element in WIDE else 32
    largest = _LARGEST[width]
    if element[0] in "fb":
        number = writer.let(converted(value, element, f"f{width}"), "number")
        bits = writer.let(f"tl.where({number} == 0, 0.0, {number}).to(tl.int{width}, bitcast=True)", "bits")
        ordered = writer.let(f"tl.where({bits} < 0, {bits} ^ {largest}, {bits})", "ordered")
        key = writer.let(f"tl.where({number} != {number}, {largest}, {ordered})", "key")
    else:
        key = writer.let(f"{value}.to(tl.int{width})", "key")
    return f"(~{key})" if descending else key


def write_ordered(
    writer: KernelWriter,
    found: RowRegion,
    places: Sequence[Axis],
    sources: Sequence[Axis],
    positions: str,
    mask: str | None,
) -> None:
    """Writes values and positions to the results of the region that are there; values are read again, bit for bit."""
    source = found.source
    for value, result in zip(found.region.returned, found.frame.results, strict=True):
        target = offset_text(writer, result.strides, 0, places)
        if value == found.anchor.results[1]:
            store(writer, result, target, f"{positions}.to(tl.int64)", mask)
            continue
        from_ = offset_text(writer, source.strides, source.offset, sources)
        store(writer, result, target, load(writer, source, from_, mask), mask)
