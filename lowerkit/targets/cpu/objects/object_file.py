"""Reads ELF64 x86-64 relocatable objects: the sections, symbols and relocations that the linker of images needs.

Layouts are those of the System V ABI ("ELF-64 Object File Format") and the x86-64 psABI. Anything a position
independent kernel has no business with (writable data, thread-local storage, absolute relocations) is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.errors import CodegenError

# Relocation types, psABI table 4.9.
R_X86_64_64 = 1
R_X86_64_PC32 = 2
R_X86_64_PLT32 = 4
R_X86_64_GOTPCREL = 9
R_X86_64_PC64 = 24
R_X86_64_GOTPCRELX = 41
R_X86_64_REX_GOTPCRELX = 42

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 2, 4, 8
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


@dataclass(frozen=True)
class Relocation:
    """A place in a section to be patched: ``symbol`` indexes :attr:`ObjectFile.symbols`."""

    offset: int
    type: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Section:
    """A section that is loaded: code or read-only data."""

    name: str
    data: bytes
    alignment: int
    executable: bool
    relocations: tuple[Relocation, ...]


@dataclass(frozen=True)
class Symbol:
    """A name: defined at ``value`` in ``section`` (an index of :attr:`ObjectFile.sections`), or None for an extern."""

    name: str
    section: int | None
    value: int
    is_global: bool


@dataclass(frozen=True)
class ObjectFile:
    """The loadable part of one object."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    def find(self, name: str) -> Symbol:
        """Returns the defined global symbol ``name``.

        Raises:
            CodegenError: LK5001, there is none.
        """
        for symbol in self.symbols:
            if symbol.name == name and symbol.is_global and symbol.section is not None:
                return symbol
        raise CodegenError("LK5001", f"the object defines no function {name!r}")


def parse_object(data: bytes) -> ObjectFile:
    """Parses an ELF64 relocatable object for x86-64.

    Raises:
        CodegenError: LK5001, it is not one, is cut, or holds what an image cannot have.
    """
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError) as error:
        raise CodegenError("LK5001", f"the object file is damaged: {error}") from error


def _parse(data: bytes) -> ObjectFile:
    header = _ELF_HEADER.unpack_from(data, 0)
    if header[0][:6] != b"\x7fELF\x02\x01" or header[1] != 1 or header[2] != 62:
        raise CodegenError("LK5001", "the object is no ELF64 little-endian relocatable file for x86-64")
    section_offset, entry_size, count, names_index = header[6], header[11], header[12], header[13]
    headers = [_SECTION_HEADER.unpack_from(data, section_offset + index * entry_size) for index in range(count)]
    names = _bytes_of(data, headers[names_index])
    kept: dict[int, int] = {}
    for index, (name, kind, flags, _, _, size, *_rest) in enumerate(headers):
        if not flags & _SHF_ALLOC or size == 0:
            continue
        label = _string(names, name)
        if label.startswith(".eh_frame"):
            continue  # kernels do not unwind
        if kind == _SHT_NOBITS or flags & _SHF_TLS or (flags & _SHF_WRITE and not label.startswith(".data.rel.ro")):
            raise CodegenError("LK5001", f"the kernel has writable data in section {label}")
        kept[index] = len(kept)
    symbols, symbol_numbers = _symbols(data, headers, kept)
    relocations: dict[int, list[Relocation]] = {index: [] for index in kept}
    for section in headers:
        if section[1] == _SHT_RELA and section[7] in kept:
            relocations[section[7]].extend(_relocations(_bytes_of(data, section), symbol_numbers))
    sections = tuple(
        Section(
            _string(names, headers[index][0]),
            _bytes_of(data, headers[index]),
            max(headers[index][8], 1),
            bool(headers[index][2] & _SHF_EXECINSTR),
            tuple(sorted(relocations[index], key=lambda relocation: relocation.offset)),
        )
        for index in kept
    )
    return ObjectFile(sections, tuple(symbols))


def _symbols(
    data: bytes, headers: Sequence[tuple[int, ...]], kept: dict[int, int]
) -> tuple[list[Symbol], dict[int, int]]:
    """Returns the symbols and the map from ELF symbol number to position among them."""
    table = next((section for section in headers if section[1] == _SHT_SYMTAB), None)
    if table is None:
        return [], {}
    strings = _bytes_of(data, headers[table[6]])
    raw = _bytes_of(data, table)
    symbols: list[Symbol] = []
    numbers: dict[int, int] = {}
    for number in range(len(raw) // _SYMBOL.size):
        name, info, _, section, value, _ = _SYMBOL.unpack_from(raw, number * _SYMBOL.size)
        if number == 0 or (section not in kept and section != _SHN_UNDEF):
            if section == _SHN_COMMON:
                raise CodegenError("LK5001", f"the kernel has writable data {_string(strings, name)!r}")
            continue  # file names and symbols of sections that are not loaded
        numbers[number] = len(symbols)
        where = None if section == _SHN_UNDEF else kept[section]
        symbols.append(Symbol(_string(strings, name), where, value, info >> 4 != 0))
    return symbols, numbers


def _relocations(raw: bytes, symbol_numbers: dict[int, int]) -> list[Relocation]:
    found: list[Relocation] = []
    for position in range(0, len(raw), _RELA.size):
        offset, info, addend = _RELA.unpack_from(raw, position)
        number = symbol_numbers.get(info >> 32)
        if number is None:
            raise CodegenError("LK5001", "a relocation refers to a section that is not loaded")
        found.append(Relocation(offset, info & 0xFFFFFFFF, number, addend))
    return found


def _bytes_of(data: bytes, header: tuple[int, ...]) -> bytes:
    offset, size = header[4], header[5]
    if offset + size > len(data):
        raise ValueError("a section lies beyond the end of the file")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
