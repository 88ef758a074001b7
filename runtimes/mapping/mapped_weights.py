"""The weights of one session, mapped: all of the entry, or what the steps of one rank read and nothing else.

A rank of a mesh, in a process of its own, maps its part of each weight that its program names: those of a pipeline's
other stages not at all. Parts that lie near each other in the file are one mapping. They are used where they are
mapped, at the alignment that they have in the file. Sessions that share an open artifact share one mapping of the whole
entry: replicas, simulated ranks, and all programs of one device.

The checksum is that of the whole entry either way. Where parts are mapped, the entry is read piece by piece for it: to
map and unmap pieces takes longer in a process of several threads.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from lowerkit.errors import LowerkitError, ResourceError
from lowerkit.runtimes import _native
from lowerkit.runtimes.arguments import Array, address_of
from lowerkit.runtimes.artifact_reader import Artifact, damaged
from lowerkit.runtimes.manifest import WEIGHTS_ENTRY, ProgramSpec
from lowerkit.runtimes.mapping.address_space import AddressSpace, megabytes
from lowerkit.runtimes.mapping.checksum import joined
from lowerkit.runtimes.mapping.weight_places import WeightKey, WeightPlace, own_part
from lowerkit.runtimes.mesh.places import mesh_label, mesh_size
from lowerkit.runtimes.safetensors_header import StoredTensor, typed_view

Bytes = npt.NDArray[np.uint8]

_PIECE = 4 << 20
"""Bytes a thread that are read at once only to be checked."""
_MOST_SUGGESTED = 64
"""Times as many ranks as there are, at most, that are suggested."""
_NEAR = 64 << 10
"""Bytes between two parts that are mapped with them: a mapping costs the kernel about as much as some pages."""


class MappedWeights:
    """What of the weights entry one session uses.

    Attributes:
        address: in memory, from which ``places`` count; 0 where nothing is mapped.
        places: of each weight that a buffer of the program names.
    """

    def __init__(self, artifact: Artifact, program: ProgramSpec, ranks: Mapping[str, int]) -> None:
        """Maps the weights of ``program``.

        Args:
            artifact: holds them, and says whether a session maps its own parts only.
            program: of the artifact.
            ranks: place of this process along each axis of the mesh.

        Raises:
            ArtifactError: LK8001, a weight cannot be cut into the parts that ranks have.
            ResourceError: LK7002, there is no room for them.
        """
        self._artifact = artifact
        try:
            self._own = {
                (buffer.weight, buffer.shard): own_part(
                    _whole(artifact.weights[buffer.weight]), buffer.shard, program, ranks
                )
                for buffer in program.buffers
                if buffer.kind == "weight"
            }
        except ValueError as error:
            raise damaged(artifact.path, str(error)) from None
        initials = (_whole(artifact.weights[weight]) for weight in program.state_initials.values())
        entry = artifact.entries.get(WEIGHTS_ENTRY)
        wanted = [WeightPlace(0, entry.size)] if entry else []
        if artifact.own_parts:
            wanted = _ranges([*self._own.values(), *initials])
        if artifact.own_parts or not artifact.is_mapped(WEIGHTS_ENTRY):
            _require_room(artifact, program, sum(each.size for each in wanted))
        self._begins = [each.offset for each in wanted]
        self._mapped = [artifact.weight_bytes(each.offset, each.size) for each in wanted]
        self._addresses = [address_of(data) for data in self._mapped]
        self.address = min(self._addresses, default=0)
        self.places = {key: WeightPlace(self._offset(place), place.size) for key, place in self._own.items()}

    def part(self, key: WeightKey) -> Bytes:
        """Returns the bytes of a weight that a buffer of the program names: this rank's part, where it lies."""
        return self._bytes(self._own[key])

    def tensor(self, name: str) -> Array:
        """Returns a stored weight, all of it, as a read-only view; it is mapped for the view where it is not mapped.

        Raises:
            ResourceError: LK7002, there is no room for it.
        """
        stored = self._artifact.weights[name]
        whole = _whole(stored)
        mapped = self._holds(whole)
        data = self._bytes(whole) if mapped else self._artifact.weight_bytes(whole.offset, whole.size)
        return typed_view(data, stored)

    def _bytes(self, place: WeightPlace) -> Bytes:
        if not place.size:
            return np.empty(0, np.uint8)
        number = self._number(place)
        start = place.offset - self._begins[number]
        return self._mapped[number][start : start + place.size]

    def _holds(self, place: WeightPlace) -> bool:
        number = self._number(place)
        return number >= 0 and place.offset + place.size <= self._begins[number] + self._mapped[number].size

    def _offset(self, place: WeightPlace) -> int:
        if not place.size:
            return 0
        number = self._number(place)
        return self._addresses[number] + place.offset - self._begins[number] - self.address

    def _number(self, place: WeightPlace) -> int:
        """Which mapping may hold a place; -1: none."""
        return bisect(self._begins, place.offset) - 1


def weights_crc32(artifact: Artifact, pool: _native.ThreadPool) -> int:
    """Returns the CRC-32 of all stored weights, on all threads of a pool.

    Raises:
        ArtifactError: LK8001, LK1001, as :meth:`Artifact.pieces`.
        ResourceError: LK7002, there is no room to map them.
    """
    if not artifact.own_parts:
        return _native.crc32(artifact.entry_bytes(WEIGHTS_ENTRY), pool)
    checksum = 0
    for piece in artifact.pieces(WEIGHTS_ENTRY, _PIECE * pool.threads):
        checksum = joined(checksum, _native.crc32(piece, pool), piece.size)
    return checksum


def _whole(tensor: StoredTensor) -> WeightPlace:
    return WeightPlace(tensor.begin, tensor.end - tensor.begin)


def _ranges(places: Iterable[WeightPlace]) -> list[WeightPlace]:
    """Returns what to map for ``places``, in order and apart from each other."""
    ranges: list[WeightPlace] = []
    for place in sorted((place for place in places if place.size), key=lambda place: place.offset):
        if ranges and place.offset <= ranges[-1].offset + ranges[-1].size + _NEAR:
            last = ranges.pop()
            end = max(last.offset + last.size, place.offset + place.size)
            ranges.append(WeightPlace(last.offset, end - last.offset))
        else:
            ranges.append(place)
    return ranges


def _require_room(artifact: Artifact, program: ProgramSpec, size: int) -> None:
    """Looks before anything is mapped, so that the error can name all that is wanted."""
    space = AddressSpace.limited()
    if space is not None and size > space.free:
        raise _no_room(artifact, program, size, space)


def _no_room(artifact: Artifact, program: ProgramSpec, size: int, space: AddressSpace) -> LowerkitError:
    ranks = more = mesh_size(program.mesh) if artifact.own_parts else 1
    while size * ranks // more > space.free and more < _MOST_SUGGESTED * ranks:
        more *= 2
    each = size * ranks // more
    smaller = f"a mesh of {more} ranks would map about {megabytes(each)} each; or " if each <= space.free else ""
    where = f", of which each rank of {mesh_label(program)} maps its part" if artifact.own_parts else ""
    stored = sum(place.size for place in map(_whole, artifact.weights.values()))
    return ResourceError(
        "LK7002",
        f"there is no room for the {megabytes(size)} of weights of {artifact.path} that this process maps",
        details=[str(space), f"the model has {megabytes(stored)} of weights{where}"],
        hint=f"{smaller}raise the limit above {megabytes(space.taken + size)}",
    )
