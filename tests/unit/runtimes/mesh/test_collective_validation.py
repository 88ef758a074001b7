"""What a manifest may say of collective steps, and each contradiction that is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from lowerkit.runtimes.manifest import (
    COLLECTIVE_KERNEL,
    COPY_KERNEL,
    JUMP_KERNEL,
    Buffer,
    CollectiveCall,
    Manifest,
    MeshAxis,
    ProgramSpec,
    Signature,
    Step,
)
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest
from lowerkit.runtimes.safetensors_header import StoredTensor
from lowerkit.runtimes.validation import manifest_problems
from tests.support.handmade_code import f32

REDUCE = CollectiveCall("all_reduce", "tp", "f32")
IN, OUT, TEMPORARY, LEFT, RIGHT, WEIGHT, STATE, NOTHING = range(8)
BUFFERS = [
    Buffer("input", 32, index=0),
    Buffer("output", 32, index=0),
    Buffer("arena", 32),
    Buffer("alias", 16, target=TEMPORARY),
    Buffer("alias", 16, target=TEMPORARY, offset=16),
    Buffer("weight", 32, weight="w"),
    Buffer("state", 32, index=0),
    Buffer("arena", 0),
]


def collective(source: int = IN, target: int = TEMPORARY, **fields: Any) -> Step:
    return Step(COLLECTIVE_KERNEL, [source, target], collective=replace(REDUCE, **fields))


def start(source: int = IN, target: int = TEMPORARY, **fields: Any) -> Step:
    return collective(source, target, phase="start", **fields)


def done(source: int = IN, target: int = TEMPORARY, **fields: Any) -> Step:
    return collective(source, target, phase="done", **fields)


def copy(source: int, target: int) -> Step:
    return Step(COPY_KERNEL, [source, target])


def jump(target: int, *buffers: int) -> Step:
    return Step(JUMP_KERNEL, list(buffers), target=target)


def manifest_of(steps: Sequence[Step], **fields: Any) -> Manifest:
    signature = Signature(inputs=[f32("x", 8)], outputs=[f32("y", 8)], states=[f32("s", 8)])
    program = ProgramSpec(signature, BUFFERS, [*steps], [], mesh=[MeshAxis("tp", 2)])
    return Manifest([replace(program, **fields)], features=["mesh", "states", "collectives"])


def problems_of(steps: Sequence[Step], **fields: Any) -> list[str]:
    manifest = manifest_of([*steps, copy(TEMPORARY, OUT)], **fields)
    return manifest_problems(manifest, {"w": StoredTensor("F32", (8,), 0, 32)})


def test_collectives_keep_what_they_say_through_the_file() -> None:
    steps = [collective(operation="all_gather", dtype="i1"), start(reduction="max"), done(reduction="max")]
    manifest = manifest_of(steps)
    assert decode_manifest(encode_manifest(manifest)).programs == manifest.programs


SOUND = {
    "at once": [collective()],
    "in place": [copy(IN, TEMPORARY), collective(TEMPORARY, TEMPORARY)],
    "from a weight into a state": [collective(WEIGHT, STATE, operation="reduce_scatter")],
    "a broadcast in place": [copy(IN, TEMPORARY), collective(TEMPORARY, operation="broadcast", root=1)],
    "a reduction at a root": [collective(operation="reduce", reduction="max", root=1)],
    "parts for all": [collective(operation="all_to_all")],
    "messages": [
        start(IN, NOTHING, operation="send", peer=1),
        collective(TEMPORARY, operation="receive", peer=1),
        done(IN, NOTHING, operation="send", peer=1),
    ],
    "behind a copy of its input": [start(), copy(IN, STATE), done()],
    "two at a time": [start(IN, LEFT), start(IN, RIGHT), done(IN, RIGHT), done(IN, LEFT)],
    "one after the other": [start(), done(), start(), done()],
    "in a loop": [start(), done(), jump(0, IN)],
    "a loop behind it": [start(), copy(IN, STATE), jump(1, IN), done()],
    "jumped over": [jump(3, IN), start(), done()],
}


@pytest.mark.parametrize("steps", SOUND.values(), ids=SOUND.keys())
def test_sound_collectives(steps: list[Step]) -> None:
    assert problems_of(steps) == []


SINGLE = {
    "is a collective and does not say which": Step(COLLECTIVE_KERNEL, [IN, TEMPORARY]),
    "says what a collective does and calls kernel -1": Step(COPY_KERNEL, [IN, TEMPORARY], collective=REDUCE),
    "is a collective along 'dp', which is no axis of the mesh": collective(axis="dp"),
    "is a collective of the unknown dtype 'f8'": collective(dtype="f8"),
    "is an all_gather and names the reduction 'max'": collective(operation="all_gather", reduction="max"),
    "is an all_to_all and names the reduction 'max'": collective(operation="all_to_all", reduction="max"),
    "is a reduce with the root 2 in 2 ranks": collective(operation="reduce", root=2),
    "is a broadcast with the root -1 in 2 ranks": collective(operation="broadcast", root=-1),
    "is an all_reduce with the root 1 in 2 ranks": collective(root=1),
    "is an all_reduce with the peer 1": collective(peer=1),
    "is a send with the peer -1 in 2 ranks": collective(operation="send"),
    "is a send with the peer 2 in 2 ranks": collective(operation="send", peer=2),
    "is a receive with the peer -5 in 2 ranks": collective(TEMPORARY, operation="receive", peer=-5),
    "is a receive of two buffers": collective(operation="receive", peer=1),
    "is a send of a buffer into itself": collective(TEMPORARY, operation="send", peer=1),
    "is an all_to_all of a buffer into itself": collective(TEMPORARY, operation="all_to_all"),
    "is a reduce of a buffer into itself": collective(TEMPORARY, operation="reduce"),
    "is a collective with 1 dims": replace(collective(), dims=[3]),
    "is a collective of 1 buffers": replace(collective(), buffers=[IN]),
    "is a collective that writes into input memory": collective(TEMPORARY, IN),
    "is a collective that writes into weight memory": collective(IN, WEIGHT),
    "is an all_gather of a buffer into itself": collective(TEMPORARY, TEMPORARY, operation="all_gather"),
    "is a reduce_scatter of a buffer into itself": collective(TEMPORARY, TEMPORARY, operation="reduce_scatter"),
    "uses buffers [0, 70] of 8": collective(IN, 70),
}


@pytest.mark.parametrize(("problem", "step"), SINGLE.items(), ids=SINGLE.keys())
def test_steps_that_contradict_themselves(problem: str, step: Step) -> None:
    assert problems_of([copy(IN, STATE), step]) == [f"step 1 {problem}"]


@pytest.mark.parametrize("field", [{"operation": "scatter"}, {"reduction": "avg"}, {"phase": "later"}, {"axis": 1}])
def test_words_that_no_collective_knows_do_not_decode(field: dict[str, Any]) -> None:
    data = encode_manifest(manifest_of([collective(**field)]))
    with pytest.raises(Exception, match="Invalid enum value|Expected `str`"):
        decode_manifest(data)


def test_collectives_of_a_program_without_a_mesh() -> None:
    assert problems_of([collective()], mesh=[]) == ["step 0 is a collective along 'tp', which is no axis of the mesh"]


def test_a_message_to_oneself() -> None:
    step = collective(operation="send", peer=1)
    manifest = manifest_of([step, copy(TEMPORARY, OUT)], place={"tp": 1})
    assert "step 0 is a send with the peer 1 in 2 ranks" in manifest_problems(manifest, {})


def test_operations_that_older_runtimes_do_not_know_are_a_feature() -> None:
    steps = [collective(operation="broadcast"), collective(operation="all_to_all"), copy(TEMPORARY, OUT)]
    manifest = replace(manifest_of(steps), features=["mesh", "states"])
    (problem,) = manifest_problems(manifest, {"w": StoredTensor("F32", (8,), 0, 32)})
    assert problem == "it has all_to_all, broadcast and does not list collectives as a required feature"


PAIRS = {
    "step 0 starts a collective, and no step waits for it": [start()],
    "step 0 waits for a collective that no step before it starts": [done()],
    "step 1 starts what step 0 has started and no step has ended": [start(), start(), done()],
    "step 1 waits for another collective than step 0 starts": [start(), done(reduction="max")],
    "step 1 waits for another collective than step 0 starts ": [
        start(operation="broadcast"), done(operation="broadcast", root=1),
    ],
    "step 1 uses the output of the collective that steps 0 to 2 run": [start(), copy(TEMPORARY, STATE), done()],
    "step 1 uses the output of the collective that steps 0 to 2 run ": [start(), copy(LEFT, STATE), done()],
    "step 1 uses the output of the collective that steps 0 to 2 run  ": [
        start(IN, LEFT), copy(TEMPORARY, STATE), done(IN, LEFT),
    ],
    "step 1 uses the output of the collective that steps 0 to 2 run   ": [
        start(), collective(STATE, TEMPORARY), done(),
    ],
    "step 1 writes into the input of the collective that steps 0 to 2 run": [
        start(STATE), copy(IN, STATE), done(STATE),
    ],
    "step 2 jumps to step 4, across steps 1 to 3 of a collective": [jump(4, IN), start(), jump(4, IN), done()],
    "step 0 jumps to step 2, across steps 1 to 3 of a collective": [
        jump(2, IN), start(), copy(IN, STATE), done(),
    ],
    "step 0 jumps to step 2, across steps 1 to 2 of a collective": [jump(2, IN), start(), done()],
    "step 1 jumps to step 0, across steps 0 to 2 of a collective": [start(), jump(0, IN), done()],
    "step 2 jumps to step 1, across steps 0 to 1 of a collective": [start(), done(), jump(1, IN)],
}  # fmt: skip


@pytest.mark.parametrize(("problem", "steps"), PAIRS.items(), ids=range(len(PAIRS)))
def test_starts_and_dones_that_do_not_belong_together(problem: str, steps: list[Step]) -> None:
    assert problems_of(steps) == [problem.strip()]
