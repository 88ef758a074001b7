"""Checks what a program says of its mesh and of collective steps. Sizes are checked when shapes are bound."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, ITEM_SIZES, Buffer, ProgramSpec, Signature, Step
from lowerkit.runtimes.mesh.pairs import jump_problems, pair_up, touch_problems
from lowerkit.runtimes.mesh.places import mesh_size, place_text
from lowerkit.runtimes.mesh.state_parts import whole_shape
from lowerkit.runtimes.mesh.structs import FIRST_OPERATIONS, IN_PLACE, MESSAGES, REDUCING, WITH_ROOT, named
from lowerkit.runtimes.safetensors_header import StoredTensor

_AXIS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_MOST_RANKS = 1 << 20
_MOST_PLACES = 1 << 12
_WRITTEN_KINDS = ("arena", "output", "state")


def mesh_problems(program: ProgramSpec, features: Collection[str]) -> Iterator[str]:
    """Yields one line for each contradiction in the axes of a mesh."""
    names = [axis.name for axis in program.mesh]
    if len(set(names)) != len(names):
        yield "two axes of the mesh have one name"
    for axis in program.mesh:
        if not _AXIS_NAME.fullmatch(axis.name) or not 1 <= axis.size <= _MOST_RANKS:
            yield f"the axis {axis.name[:40]!r} of the mesh has {axis.size} ranks"
    if mesh_size(program.mesh) > _MOST_RANKS:
        yield f"its mesh has more than {_MOST_RANKS} ranks"
    if names and "mesh" not in features:
        yield "it has a mesh and does not list it as a required feature"
    sizes = {axis.name: axis.size for axis in program.mesh}
    for name, index in program.place.items():
        if not 0 <= index < sizes.get(name, 0):
            yield f"it is for place {index} of {sizes.get(name, 0)} along {name[:40]!r}"
    if program.place and "places" not in features:
        yield "it is for a place in a mesh, and places are not listed as a required feature"
    for number, buffer in enumerate(program.buffers):
        if not buffer.shard:
            continue
        shared = buffer.shard.split(",")
        if buffer.kind != "weight" or not set(shared) <= sizes.keys() or len(set(shared)) < len(shared):
            yield f"buffer {number} ({buffer.kind}) is shared along {buffer.shard[:80]!r}: no axes of the mesh"


def state_problems(
    program: ProgramSpec, weights: Mapping[str, StoredTensor], features: Collection[str]
) -> Iterator[str]:
    """Yields one line for each contradiction in where states start, and in how ranks share them."""
    if program.state_cuts and "state_cuts" not in features:
        yield "its ranks share states, and state cuts are not listed as a required feature"
    sizes = {axis.name: axis.size for axis in program.mesh}
    specs = {spec.name: spec for spec in program.signature.states}
    shapes = {name: [entry for entry in spec.shape if isinstance(entry, int)] for name, spec in specs.items()}
    for name, cuts in program.state_cuts.items():
        axes, rank = [cut.axis for cut in cuts], len(shapes.get(name, []))
        fitting = all(
            0 <= cut.dim < rank and cut.parts > 1 and cut.axis in sizes and sizes[cut.axis] % cut.parts == 0
            for cut in cuts
        )
        if not fitting or not cuts or len(set(axes)) < len(axes):
            yield f"the state {name[:80]!r} is cut in a way that there is not"
            return
    for name, weight in program.state_initials.items():
        if name not in specs or weight not in weights:
            yield f"state {name!r} starts from the weight {weight!r}: one of them does not exist"
            continue
        stored, whole = weights[weight], whole_shape(shapes[name], program.state_cuts.get(name, []))
        size = math.prod(whole) * ITEM_SIZES.get(specs[name].dtype, 0)
        if (tuple(stored.shape), stored.end - stored.begin) != (whole, size):
            yield f"the state {name[:80]!r} of {list(whole)} starts from a tensor {stored.dtype} {list(stored.shape)}"


def place_problems(programs: Sequence[ProgramSpec]) -> Iterator[str]:
    """Yields one line for each contradiction between programs of one name and target, each sound by itself.

    Every rank of their mesh runs one of them, and all take and give the same; states and guards are of each alone.
    """
    first, *others = programs
    label = f"program {first.name!r} for {first.label}"
    if any(other.mesh != first.mesh or _arguments(other) != _arguments(first) for other in others):
        yield f"{label} is there for several places, with other meshes, inputs or outputs"
        return
    if len(programs) > _MOST_PLACES:
        yield f"{label} is there for more than {_MOST_PLACES} places"
        return
    for number, one in enumerate(programs):
        for other in programs[:number]:
            if all(one.place[axis] == other.place[axis] for axis in one.place.keys() & other.place.keys()):
                names = [place_text(program.place) or "all ranks" for program in (other, one)]
                yield (
                    "two programs have one name and one target"
                    if names[0] == names[1]
                    else f"{label} is there for {names[0]} and for {names[1]}: some ranks are of both"
                )
                return
    sizes = {axis.name: axis.size for axis in first.mesh}
    ranks = mesh_size(first.mesh)
    served = sum(ranks // math.prod(sizes[axis] for axis in program.place) for program in programs)
    if served < ranks:
        yield f"{label} is there for {served} of the {ranks} ranks of its mesh"


def _arguments(program: ProgramSpec) -> Signature:
    return replace(program.signature, states=[], guards=[])


def collective_problems(program: ProgramSpec, features: Collection[str]) -> Iterator[str]:
    """Yields one line for each contradiction in the collective steps of a program."""
    calls = [step.collective for step in program.steps if step.collective is not None]
    later = sorted({call.operation for call in calls if call.operation not in FIRST_OPERATIONS})
    if later and "collectives" not in features:
        yield f"it has {', '.join(later)} and does not list collectives as a required feature"
    own = [
        f"step {number} {problem}"
        for number, step in enumerate(program.steps)
        if step.kernel == COLLECTIVE_KERNEL or step.collective is not None
        for problem in _step_problems(program, step)
    ]
    yield from own
    if own:
        return  # what belongs together is looked for among steps that are sound by themselves
    pairs, problems = pair_up(program.steps)
    if not pairs and not problems:
        return
    yield from problems
    yield from jump_problems(program.steps, pairs)
    names_of = [_named_memory(program.buffers, number) for number in range(len(program.buffers))]

    def overlap(one: int, other: int) -> bool:
        # Two parts of one buffer may lie apart: that is seen when shapes are bound.
        if not (0 <= one < len(names_of) and 0 <= other < len(names_of)):
            return False
        return bool(names_of[one] and names_of[other]) and (
            names_of[one][-1] in names_of[other] or names_of[other][-1] in names_of[one]
        )

    yield from touch_problems(program.steps, pairs, overlap)


def _step_problems(program: ProgramSpec, step: Step) -> Iterator[str]:
    call = step.collective
    if call is None:
        yield "is a collective and does not say which"
        return
    if step.kernel != COLLECTIVE_KERNEL:
        yield f"says what a collective does and calls kernel {step.kernel}"
        return
    if call.axis not in [axis.name for axis in program.mesh]:
        yield f"is a collective along {call.axis[:40]!r}, which is no axis of the mesh"
    if call.dtype not in ITEM_SIZES:
        yield f"is a collective of the unknown dtype {call.dtype[:40]!r}"
    if call.operation not in REDUCING and call.reduction != "sum":
        yield f"is {named(call.operation)} and names the reduction {call.reduction!r}"
    ranks = next((axis.size for axis in program.mesh if axis.name == call.axis), 1)
    if not 0 <= call.root < (ranks if call.operation in WITH_ROOT else 1):
        yield f"is {named(call.operation)} with the root {call.root} in {ranks} ranks"
    if call.operation in MESSAGES:
        if not 0 <= call.peer < ranks or call.peer == program.place.get(call.axis, -1):
            yield f"is {named(call.operation)} with the peer {call.peer} in {ranks} ranks"
    elif call.peer != -1:
        yield f"is {named(call.operation)} with the peer {call.peer}"
    if step.dims:
        yield f"is a collective with {len(step.dims)} dims"
    if len(step.buffers) != 2:
        yield f"is a collective of {len(step.buffers)} buffers"
        return
    if any(not 0 <= number < len(program.buffers) for number in step.buffers):
        return  # said of steps of all kinds
    source, target = (_named_memory(program.buffers, number) for number in step.buffers)
    if target and target[0][0] not in _WRITTEN_KINDS:
        yield f"is a collective that writes into {target[0][0]} memory"
    if call.operation == "receive" and step.buffers[0] != step.buffers[1]:
        yield "is a receive of two buffers"
    if call.operation not in IN_PLACE and source and source == target:
        yield f"is {named(call.operation)} of a buffer into itself"


def _named_memory(buffers: list[Buffer], number: int) -> tuple[tuple[str, str | int], ...]:
    """Returns what names the memory of a buffer: its root, then every alias down to itself; empty in a circle."""
    chain: list[tuple[str, str | int]] = []
    for _ in range(len(buffers)):
        if not 0 <= number < len(buffers):
            break
        buffer = buffers[number]
        if buffer.kind == "alias":
            chain.append(("alias", number))
            number = buffer.target
            continue
        place = {"weight": buffer.weight, "arena": number}.get(buffer.kind, buffer.index)
        return ((buffer.kind, place), *reversed(chain))
    return ()
