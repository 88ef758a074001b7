"""The manifest: canonical bytes, a content id that guards them, and contradictions that are all found."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from lowerkit.runtimes.manifest import (
    Buffer,
    Dim,
    EntryInfo,
    Manifest,
    MeshAxis,
    Signature,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest, stored_content_id_holds
from lowerkit.runtimes.safetensors_header import StoredTensor
from lowerkit.runtimes.validation import manifest_problems
from tests.support.handmade_code import CODE_ENTRY, changed, f32, tanh_of_sum_manifest

WEIGHTS = {"bias": StoredTensor("F32", (8, 4), 0, 128)}


def test_encoding_is_canonical_and_round_trips() -> None:
    manifest = tanh_of_sum_manifest()
    data = encode_manifest(manifest)
    decoded = decode_manifest(data)
    assert replace(decoded, content_id="") == manifest
    assert encode_manifest(decoded) == data
    assert msgspec.json.encode(msgspec.json.decode(data), order="sorted") == data
    assert stored_content_id_holds(data, decoded.content_id)


def test_the_content_id_guards_every_byte() -> None:
    data = encode_manifest(tanh_of_sum_manifest())
    identity = decode_manifest(data).content_id
    for match in list(re.finditer(rb"\d", data))[::5]:
        changed = bytearray(data)
        changed[match.start()] ^= 1
        assert not stored_content_id_holds(bytes(changed), identity), data[match.start() - 20 : match.start() + 5]


@pytest.mark.parametrize("bad", [b'["pow",1,2]', b'["add",1]', b"1.5", b"true", b'["add",1,[2]]'])
def test_malformed_expressions_do_not_decode(bad: bytes) -> None:
    data = encode_manifest(tanh_of_sum_manifest()).replace(b'["mul","n",16]', bad)
    assert bad in data
    with pytest.raises(msgspec.ValidationError):
        decode_manifest(data)


def sound(**fields: Any) -> Manifest:
    return changed(tanh_of_sum_manifest(), **{"entries": {CODE_ENTRY: EntryInfo(8192, "")}, "golden": None, **fields})


def test_a_sound_manifest_has_no_problems() -> None:
    assert manifest_problems(sound(), WEIGHTS) == []


def test_all_contradictions_are_found_at_once() -> None:
    signature = Signature(
        inputs=[f32("x", "n", 4), f32("x", "k")],
        outputs=[f32("y", -1), TensorSpec("z", "f8", [1]), f32("deep", *[1] * 40)],
        states=[f32("s", "n")],
        dims=[Dim("n"), Dim("n"), Dim("unused")],
    )
    steps = [Step(9, [0, 1, 2, 4]), Step(0, [0, 77]), Step(-1, [0])]
    problems = "\n".join(manifest_problems(sound(signature=signature, steps=steps, state_initials={"t": "w"}), WEIGHTS))
    for part in (
        "two inputs have one name", "'x' has the extent 'k'", "'y' has the extent -1", "dtype 'f8'", "has rank 40",
        "state 's' has the extent 'n'", "two dims have one name", "dim 'unused' is in the shape of no input",
        "step 0 calls kernel 9 of 4", "step 1 uses buffers [0, 77] of 5", "step 2 copies between 1 buffers",
        "output 'y' is written by no step", "state 't' starts from",
    ):  # fmt: skip
        assert part in problems


def test_aliases_in_a_circle_end() -> None:
    buffers = [Buffer("alias", 4, target=1), Buffer("alias", 4, target=0), Buffer("alias", 4, target=99)]
    problems = manifest_problems(sound(buffers=buffers, steps=[Step(0, [0, 1, 2])]), WEIGHTS)
    assert sum("leads nowhere" in problem for problem in problems) == 3


def test_a_weight_that_is_not_stored() -> None:
    assert manifest_problems(sound(), {}) == ["buffer 1 is the weight 'bias', which is not stored"]


def test_programs_that_cannot_be_told_apart_or_have_no_code() -> None:
    (program,) = sound().programs
    wide = replace(program, level="x86-64-v4")
    assert manifest_problems(sound(programs=[wide, program]), WEIGHTS) == []
    assert manifest_problems(sound(programs=[program, program]), WEIGHTS) == [
        "two programs have one name and one target"
    ]
    assert manifest_problems(sound(programs=[]), WEIGHTS) == ["it has no program 'main'"]
    lost = replace(wide, code={"": "code/none.bin"})
    (problem,) = manifest_problems(sound(programs=[program, lost]), WEIGHTS)
    assert problem == (
        "program 'main' for cpu:x86-64-v4: its code for the host is the entry 'code/none.bin', which there is not"
    )
    assert manifest_problems(sound(code={}), WEIGHTS) == ["it has kernels and no code"]


def test_meshes_and_the_weights_that_their_ranks_share() -> None:
    buffers = list(sound().programs[0].buffers)
    buffers[1] = replace(buffers[1], shard="tp")
    mesh = [MeshAxis("tp", 2)]
    assert manifest_problems(sound(buffers=buffers, mesh=mesh, features=["mesh"]), WEIGHTS) == []
    problems = manifest_problems(sound(buffers=buffers, mesh=[*mesh, MeshAxis("tp", 0)]), WEIGHTS)
    assert problems == [
        "two axes of the mesh have one name",
        "the axis 'tp' of the mesh has 0 ranks",
        "it has a mesh and does not list it as a required feature",
    ]
    (problem,) = manifest_problems(sound(buffers=buffers), WEIGHTS)
    assert problem == "buffer 1 (weight) is shared along 'tp': no axes of the mesh"
