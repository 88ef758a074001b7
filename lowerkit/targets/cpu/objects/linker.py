"""The linker: object files of kernels to one position independent code image, without a system linker.

Vocabulary
    image        bytes that run wherever they are mapped at a page boundary, read-execute.
    entry        offset of a kernel's first instruction.
    import       a C library function the kernels call; the loader writes its address into a slot.
    import table slots of 8 bytes, on pages of their own at the end of the image (the loader maps them read-only
                 after filling them).
    thunk        ``jmp *slot(%rip)``: what a direct call of an import reaches.

Steps
    1. place the code sections of all objects, each on a 64-byte boundary, then the thunks, then the read-only data;
       equal objects and equal constants are placed once;
    2. patch the relocations: all are relative to the instruction pointer, so nothing is left for load time;
    3. append the import table.

Equal input gives equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.errors import CodegenError
from lowerkit.runtimes.manifest import ImportSite
from lowerkit.targets.cpu.objects.object_file import (
    R_X86_64_64,
    R_X86_64_GOTPCREL,
    R_X86_64_GOTPCRELX,
    R_X86_64_PC32,
    R_X86_64_PC64,
    R_X86_64_PLT32,
    R_X86_64_REX_GOTPCRELX,
    ObjectFile,
    Relocation,
    Section,
    Symbol,
    parse_object,
)
from lowerkit.targets.cpu.text.abi import KERNEL

PAGE = 4096
_CODE_ALIGNMENT = 64
_INTERRUPT = b"\xcc"  # int3: a stray jump into padding stops at once

_UNARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "exp10", "expm1", "fabs", "floor", "lgamma", "log", "log10", "log1p", "log2", "nearbyint", "rint", "round",
    "roundeven", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc",
)  # fmt: skip
_BINARY = (
    "atan2", "copysign", "fmax", "fmin", "fmod", "hypot", "pow", "remainder", "nextafter", "ldexp",
)  # fmt: skip
IMPORTABLE: frozenset[str] = frozenset(
    [name + suffix for name in (*_UNARY, *_BINARY, "fma") for suffix in ("", "f")]
    + ["sincos", "sincosf", "memcpy", "memmove", "memset"]
    + ["__truncsfhf2", "__truncdfhf2", "__truncsfbf2", "__truncdfbf2", "__extendhfsf2", "__extendhfdf2"]
)
"""What the runtime can bind: the names of ``runtimes/native/executor/support_routines.cpp``."""


@dataclass(frozen=True)
class CodeImage:
    """Linked code.

    Attributes:
        data: the bytes, a whole number of pages.
        entries: for each object handed to :func:`link_image`, the offset of its kernel.
        imports: names of the imported functions, in the order of their slots.
        import_table_offset: where the slots are, a multiple of 4096; the end of ``data`` where there are none.
        import_sites: where the code refers to the slots, by offset.
    """

    data: bytes = field(repr=False)
    entries: tuple[int, ...]
    imports: tuple[str, ...]
    import_table_offset: int
    import_sites: tuple[ImportSite, ...] = ()


def link_image(objects: Sequence[bytes], entry: str = KERNEL) -> CodeImage:
    """Links one kernel per object into an image.

    Args:
        objects: ELF64 relocatable objects; equal ones share their code.
        entry: the name of the function that each object defines.

    Raises:
        CodegenError: LK5001, an object is damaged, calls something the runtime does not offer, or is not position
            independent.
    """
    unique = list(dict.fromkeys(objects))
    parsed = [parse_object(data) for data in unique]
    layout = _Layout(parsed)
    layout.patch()
    places = [layout.address(number, parsed[number].find(entry)) for number in range(len(parsed))]
    by_object = dict(zip(unique, places, strict=True))
    return CodeImage(
        bytes(layout.data),
        tuple(by_object[data] for data in objects),
        tuple(layout.imports),
        layout.table_offset,
        tuple(sorted(layout.sites, key=lambda site: site.offset)),
    )


class _Layout:
    """Where every section went."""

    def __init__(self, objects: Sequence[ObjectFile]) -> None:
        self.objects = objects
        self.data = bytearray()
        self.places: dict[tuple[int, int], int] = {}
        self.sites: list[ImportSite] = []
        names = {symbol.name for object_file in objects for symbol in object_file.symbols if symbol.section is None}
        unknown = sorted(names - IMPORTABLE)
        if unknown:
            raise CodegenError("LK5001", f"kernels call functions the runtime does not offer: {', '.join(unknown)}")
        self.imports = sorted(names)
        for number, object_file in enumerate(objects):
            for position, section in enumerate(object_file.sections):
                if section.executable:
                    self._place(number, position, section, max(section.alignment, _CODE_ALIGNMENT))
        self._align(_CODE_ALIGNMENT)
        self.thunks = len(self.data)
        self.data += b"\xcc" * 8 * len(self.imports)
        constants: dict[tuple[bytes, int], int] = {}
        for number, object_file in enumerate(objects):
            for position, section in enumerate(object_file.sections):
                if section.executable:
                    continue
                key = (section.data, section.alignment)
                if not section.relocations and key in constants:
                    self.places[number, position] = constants[key]
                    continue
                self._place(number, position, section, section.alignment)
                if not section.relocations:
                    constants[key] = self.places[number, position]
        self._align(PAGE)
        self.table_offset = len(self.data)
        self.data += b"\0" * 8 * len(self.imports)
        self._align(PAGE, b"\0")
        for slot in range(len(self.imports)):
            at = self.thunks + 8 * slot
            self.data[at : at + 2] = b"\xff\x25"
            self._refer(at + 2, slot, -4)

    def slot(self, number: int) -> int:
        """Offset of an import's slot."""
        return self.table_offset + 8 * number

    def address(self, number: int, symbol: Symbol) -> int:
        """Offset that ``symbol`` of object ``number`` resolves to; the thunk for an import."""
        if symbol.section is None:
            return self.thunks + 8 * self.imports.index(symbol.name)
        return self.places[number, symbol.section] + symbol.value

    def patch(self) -> None:
        """Applies every relocation."""
        done: set[int] = set()
        for number, object_file in enumerate(self.objects):
            for position, section in enumerate(object_file.sections):
                base = self.places[number, position]
                if base in done:
                    continue
                done.add(base)
                for relocation in section.relocations:
                    self._relocate(number, base + relocation.offset, relocation)

    def _relocate(self, number: int, at: int, relocation: Relocation) -> None:
        symbol = self.objects[number].symbols[relocation.symbol]
        target = self.address(number, symbol)
        if relocation.type in (R_X86_64_PC32, R_X86_64_PLT32):
            self._write32(at, target + relocation.addend - at)
        elif relocation.type == R_X86_64_PC64:
            struct.pack_into("<q", self.data, at, target + relocation.addend - at)
        elif relocation.type in (R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX):
            if symbol.section is None:  # the slot of the import is its entry in the global offset table
                self._refer(at, self.imports.index(symbol.name), relocation.addend)
            else:
                self._relax(at, target + relocation.addend - at, symbol)
        else:
            kind = "absolute relocation" if relocation.type == R_X86_64_64 else f"relocation of type {relocation.type}"
            raise CodegenError("LK5001", f"the kernel is not position independent: {kind} against {symbol.name!r}")

    def _refer(self, at: int, slot: int, addend: int) -> None:
        self.sites.append(ImportSite(at, slot, addend))
        self._write32(at, self.slot(slot) + addend - at)

    def _relax(self, at: int, distance: int, symbol: Symbol) -> None:
        """Turns a load of a local address from the offset table into its computation (psABI, section B.2)."""
        opcode, operand = self.data[at - 2], self.data[at - 1]
        if opcode == 0x8B:  # mov slot(%rip), %r -> lea target(%rip), %r
            self.data[at - 2] = 0x8D
            self._write32(at, distance)
        elif opcode == 0xFF and operand == 0x15:  # call *slot(%rip) -> addr32 call target
            self.data[at - 2 : at] = b"\x67\xe8"
            self._write32(at, distance)
        elif opcode == 0xFF and operand == 0x25:  # jmp *slot(%rip) -> jmp target; nop
            self.data[at - 2] = 0xE9
            self._write32(at - 1, distance + 1)
            self.data[at + 3] = 0x90
        else:
            raise CodegenError("LK5001", f"the address of {symbol.name!r} is taken in a way that cannot be relaxed")

    def _write32(self, at: int, value: int) -> None:
        if not -(2**31) <= value < 2**31:
            raise CodegenError("LK5001", "the code image is larger than 2 GiB")
        struct.pack_into("<i", self.data, at, value)

    def _place(self, number: int, position: int, section: Section, alignment: int) -> None:
        self._align(alignment)
        self.places[number, position] = len(self.data)
        self.data += section.data

    def _align(self, alignment: int, filler: bytes = _INTERRUPT) -> None:
        self.data += filler * (-len(self.data) % alignment)
