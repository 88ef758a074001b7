"""Which part of a state a rank has, and the whole of all parts: along several axes, and fewer parts than ranks."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.mesh.places import place_of
from lowerkit.runtimes.mesh.state_parts import joined, own_slices, whole_shape
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut

MESH = [MeshAxis("dp", 2), MeshAxis("tp", 4)]
CUTS = {
    "heads": ([StateCut("tp", 1, 4)], (6, 2)),
    "shared heads": ([StateCut("tp", 1, 2)], (6, 4)),
    "batch and heads": ([StateCut("dp", 0, 2), StateCut("tp", 1, 4)], (3, 2)),
    "one dimension twice": ([StateCut("dp", 1, 2), StateCut("tp", 1, 2)], (6, 2)),
    "whole": ([], (6, 8)),
}


@pytest.mark.parametrize("name", CUTS)
def test_parts_are_cut_and_joined(name: str) -> None:
    cuts, own = CUTS[name]
    state = np.arange(48).reshape(6, 8)
    assert whole_shape(own, cuts) == state.shape
    places = [place_of(MESH, rank) for rank in range(8)]
    parts = [state[own_slices(own, cuts, MESH, place)] for place in places]
    assert {part.shape for part in parts} == {own}
    assert np.array_equal(joined(zip(places, parts, strict=True), cuts, MESH), state)


def test_who_has_what() -> None:
    def first(cuts: list[StateCut], own: tuple[int, ...]) -> list[int]:
        return [own_slices(own, cuts, MESH, place_of(MESH, rank))[1].start for rank in range(8)]

    assert first([StateCut("tp", 1, 2)], (6, 4)) == [0, 0, 4, 4] * 2
    # The second axis cuts the parts of the first one.
    assert first([StateCut("dp", 1, 2), StateCut("tp", 1, 4)], (6, 1)) == list(range(8))
    assert first([StateCut("tp", 1, 4), StateCut("dp", 1, 2)], (6, 1)) == [0, 2, 4, 6, 1, 3, 5, 7]
    assert own_slices((6, 4), [StateCut("tp", 1, 2)], MESH, {}) == (slice(0, 6), slice(0, 4))
