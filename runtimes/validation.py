"""Checks that the parts of a manifest fit each other, so that a run never has to.

What depends on dims (sizes against shapes, aliases inside their targets) is checked when shapes are bound.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager

from lowerkit.errors import ArtifactError
from lowerkit.runtimes.conditions import condition_symbols
from lowerkit.runtimes.expressions import ExpressionError, symbols
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    COLLECTIVE_KERNEL,
    COPY_KERNEL,
    GOLDEN_INPUTS_ENTRY,
    HOST,
    INDEX_DTYPES,
    ITEM_SIZES,
    JUMP_KERNEL,
    MAIN_PROGRAM,
    IndexCheck,
    Manifest,
    ProgramSpec,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.mesh.places import place_text
from lowerkit.runtimes.mesh.validation import collective_problems, mesh_problems, place_problems, state_problems
from lowerkit.runtimes.nesting import argument_problems, tree_problems
from lowerkit.runtimes.safetensors_header import StoredTensor

DEVICE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""What devices, and the targets that they belong to, may be called."""

_ON_DEVICES = ("arena", "weight", "state", "alias")
_BUILT_IN = (COPY_KERNEL, JUMP_KERNEL, CHECK_KERNEL, COLLECTIVE_KERNEL)


@contextmanager
def contradictions(dims: Mapping[str, int]) -> Generator[None]:
    """Raises what is found wrong with a manifest while ``dims`` are bound as ArtifactError LK8001."""
    try:
        yield
    except (ExpressionError, ValueError, OverflowError) as error:
        shown = ", ".join(f"{name}={value}" for name, value in dims.items())
        where = f" for {shown}" if shown else ""
        raise ArtifactError("LK8001", f"the manifest contradicts itself{where}: {error}") from None


def manifest_problems(manifest: Manifest, weights: Mapping[str, StoredTensor]) -> list[str]:
    """Returns one line for each contradiction; empty for a sound manifest."""
    alike: dict[tuple[str, str], list[ProgramSpec]] = {}
    problems: list[str] = []
    for program in manifest.programs:
        alike.setdefault((program.name, program.label), []).append(program)
        at = f" at {place_text(program.place)}" if program.place else ""
        prefix = f"program {program.name!r} for {program.label}{at}: " if len(manifest.programs) > 1 else ""
        problems += [prefix + problem for problem in _program_problems(program, manifest, weights)]
    if not any(name == MAIN_PROGRAM for name, _ in alike):
        problems.append(f"it has no program {MAIN_PROGRAM!r}")
    if not problems:
        problems += [problem for programs in alike.values() for problem in place_problems(programs)]
    return problems


def _program_problems(program: ProgramSpec, manifest: Manifest, weights: Mapping[str, StoredTensor]) -> Iterator[str]:
    if not f"{program.name}{program.label}".isprintable():
        yield "it has a name that cannot be printed"
    yield from _signature_problems(program, manifest.features)
    yield from mesh_problems(program, manifest.features)
    yield from _buffer_problems(program, weights)
    yield from _step_problems(program, manifest.features)
    yield from collective_problems(program, manifest.features)
    yield from state_problems(program, weights, manifest.features)
    yield from _code_problems(program, manifest)
    yield from _device_problems(program, manifest)
    yield from _import_problems(program)
    yield from argument_problems(program.input_tree, len(program.signature.inputs))
    yield from tree_problems(program.output_tree, len(program.signature.outputs), "outputs")


def _signature_problems(program: ProgramSpec, features: Collection[str]) -> Iterator[str]:
    signature = program.signature
    dims = [dim.name for dim in signature.dims]
    for what, specs in (("input", signature.inputs), ("output", signature.outputs), ("state", signature.states)):
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            yield f"two {what}s have one name"
        yield from (f"the name {name!r} cannot be printed" for name in names if not name.isprintable())
        for spec in specs:
            yield from _spec_problems(f"{what} {spec.name!r}", spec, [] if what == "state" else dims)
    if len(set(dims)) != len(dims):
        yield "two dims have one name"
    bound = {symbol for spec in signature.inputs for entry in spec.shape for symbol in symbols(entry)}
    for dim in signature.dims:
        if dim.name not in bound:
            yield f"dim {dim.name!r} is in the shape of no input"
    for guard in signature.guards:
        if any(symbol not in dims for symbol in condition_symbols(guard.condition)):
            yield f"the guard {guard.condition!r} is about what is no dim"
    if signature.guards and "guards" not in features:
        yield "it has guards and does not list them as a required feature"


def _spec_problems(what: str, spec: TensorSpec, dims: list[str]) -> Iterator[str]:
    if spec.dtype not in ITEM_SIZES:
        yield f"{what} has the unknown dtype {spec.dtype!r}"
    if len(spec.shape) > 32:
        yield f"{what} has rank {len(spec.shape)}"
    for entry in spec.shape:
        unknown = [symbol for symbol in symbols(entry) if symbol not in dims]
        if unknown or (isinstance(entry, int) and entry < 0):
            yield f"{what} has the extent {entry!r}"


def _buffer_problems(program: ProgramSpec, weights: Mapping[str, StoredTensor]) -> Iterator[str]:
    signature = program.signature
    counts = {"input": len(signature.inputs), "output": len(signature.outputs), "state": len(signature.states)}
    for number, buffer in enumerate(program.buffers):
        if buffer.kind in counts and not 0 <= buffer.index < counts[buffer.kind]:
            yield f"buffer {number} is {buffer.kind} {buffer.index} of {counts[buffer.kind]}"
        if buffer.kind == "weight" and buffer.weight not in weights:
            yield f"buffer {number} is the weight {buffer.weight!r}, which is not stored"
        if buffer.kind == "alias" and root_buffer(program, number) is None:
            yield f"buffer {number} is an alias that leads nowhere"
    served = {root for step in program.steps for root in (root_buffer(program, b) for b in step.buffers)}
    outputs = {program.buffers[root].index for root in served if root is not None and _is_output(program, root)}
    for index, spec in enumerate(signature.outputs):
        if index not in outputs:
            yield f"output {spec.name!r} is written by no step"


def _is_output(program: ProgramSpec, buffer: int) -> bool:
    return program.buffers[buffer].kind == "output"


def root_buffer(program: ProgramSpec, number: int) -> int | None:
    """Follows aliases to the buffer that owns the memory; None where a link leads out of the table or in a circle."""
    for _ in range(len(program.buffers) + 1):
        if not 0 <= number < len(program.buffers):
            return None
        if program.buffers[number].kind != "alias":
            return number
        number = program.buffers[number].target
    return None


def _step_problems(program: ProgramSpec, features: Collection[str]) -> Iterator[str]:
    for number, step in enumerate(program.steps):
        if not f"{step.name}{step.location}".isprintable():
            yield f"step {number} has a name that cannot be printed"
        if step.kernel not in _BUILT_IN and not 0 <= step.kernel < len(program.kernels):
            yield f"step {number} calls kernel {step.kernel} of {len(program.kernels)}"
        if any(not 0 <= buffer < len(program.buffers) for buffer in step.buffers):
            yield f"step {number} uses buffers {step.buffers} of {len(program.buffers)}"
        if step.kernel == COPY_KERNEL and len(step.buffers) != 2:
            yield f"step {number} copies between {len(step.buffers)} buffers"
        if step.kernel == JUMP_KERNEL and not 0 <= step.target <= len(program.steps):
            yield f"step {number} jumps to step {step.target} of {len(program.steps)}"
        if step.kernel == JUMP_KERNEL and len(step.buffers) > 1:
            yield f"step {number} jumps by {len(step.buffers)} buffers"
        if step.kernel == CHECK_KERNEL:
            yield from (f"step {number} {problem}" for problem in _check_problems(step, step.check))
            if "index_checks" not in features:
                yield f"step {number} checks indices, and they are not listed as a required feature"


def _check_problems(step: Step, check: IndexCheck | None) -> Iterator[str]:
    if check is None:
        yield "checks indices and does not say for what"
        return
    if len(step.buffers) != 1:
        yield f"checks the indices of {len(step.buffers)} buffers"
    if check.dtype not in INDEX_DTYPES:
        yield f"checks indices of the dtype {check.dtype!r}"
    if not check.extents:
        yield "checks indices of no extent"
    if check.exempt is not None and not -(1 << 63) <= check.exempt < 1 << 63:
        yield f"exempts {check.exempt}, which is no index"
    if not check.operator.isprintable():
        yield "has an operator that cannot be printed"


def _code_problems(program: ProgramSpec, manifest: Manifest) -> Iterator[str]:
    """Offsets into the code are checked against its size by the native loader, which takes 64 bits."""
    for memory, entry in program.code.items():
        if entry not in manifest.entries:
            yield f"its code for {memory or 'the host'} is the entry {entry!r}, which there is not"
    if HOST not in program.code and any(kernel.device == HOST for kernel in program.kernels):
        yield "it has kernels and no code"
    if program.golden is not None and not {program.golden.entry, GOLDEN_INPUTS_ENTRY} <= manifest.entries.keys():
        yield f"its golden outputs are the entry {program.golden.entry!r}, or the inputs are missing"
    for number, kernel in enumerate(program.kernels):
        if kernel.device == HOST and not 0 <= kernel.offset < 1 << 62:
            yield f"kernel {number} starts at {kernel.offset}, outside of the code"
    if not 0 <= program.import_table_offset < 1 << 62:
        yield f"an import table at {program.import_table_offset} does not fit the code"


def _device_problems(program: ProgramSpec, manifest: Manifest) -> Iterator[str]:
    """A kernel of the host touches the host's memory only, a launch only that of its device."""
    names = [spec.name for spec in program.devices]
    if len(set(names)) != len(names):
        yield "two devices have one name"
    for spec in program.devices:
        if not DEVICE_NAME.fullmatch(spec.name) or not spec.level.isprintable():
            yield f"a device has the name {spec.name[:40]!r}"
    if names and "devices" not in manifest.features:
        yield "it has devices and does not list them as a required feature"
    for number, kernel in enumerate(program.kernels):
        if kernel.device != HOST:
            entry = manifest.entries.get(program.code.get(kernel.device, ""))
            end = kernel.offset + kernel.size
            if kernel.device not in names or entry is None or not 0 <= kernel.offset <= end <= entry.size:
                yield f"kernel {number} is no part of the code of a device"
    for number, buffer in enumerate(program.buffers):
        if buffer.memory != HOST and (buffer.memory not in names or buffer.kind not in _ON_DEVICES):
            yield f"buffer {number} is {buffer.kind} in the memory {buffer.memory!r}"
        target = root_buffer(program, number)
        if target is not None and program.buffers[target].memory != buffer.memory:
            yield f"buffer {number} is an alias into another memory"
    homes = {(buffer.index, buffer.memory) for buffer in program.buffers if buffer.kind == "state"}
    if len({index for index, _ in homes}) != len(homes):
        yield "a state lives in two memories"
    if any(memory != HOST for _, memory in homes) and "device_states" not in manifest.features:
        yield "it has states on devices and does not list them as a required feature"
    for number, step in enumerate(program.steps):
        if step.kernel != COPY_KERNEL and step.kernel < len(program.kernels):
            memory = program.kernels[step.kernel].device if step.kernel >= 0 else HOST
            inside = [buffer for buffer in step.buffers if 0 <= buffer < len(program.buffers)]
            if any(program.buffers[buffer].memory != memory for buffer in inside):
                yield f"step {number} runs on {memory or 'the host'} and uses buffers of another memory"


def _import_problems(program: ProgramSpec) -> Iterator[str]:
    for site in program.import_sites:
        inside = 0 <= site.offset <= program.import_table_offset - 4 and -(1 << 31) <= site.addend < 1 << 31
        if not (inside and 0 <= site.slot < len(program.imports)):
            yield f"an import site at {site.offset} refers to slot {site.slot} of {len(program.imports)}"
