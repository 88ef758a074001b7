"""Checks that the parts of a manifest fit each other, so that a run never has to.

What depends on dims (sizes against shapes, aliases inside their targets) is checked when shapes are bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lowerkit.runtimes.conditions import condition_symbols
from lowerkit.runtimes.expressions import symbols
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    COPY_KERNEL,
    DEVICE_ENTRY,
    HOST,
    INDEX_DTYPES,
    ITEM_SIZES,
    JUMP_KERNEL,
    IndexCheck,
    Manifest,
    Step,
    TensorSpec,
)
from lowerkit.runtimes.nesting import argument_problems, tree_problems
from lowerkit.runtimes.safetensors_header import StoredTensor

DEVICE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""What devices, and the targets that they belong to, may be called."""


def manifest_problems(manifest: Manifest, weights: Mapping[str, StoredTensor]) -> list[str]:
    """Returns one line for each contradiction; empty for a sound manifest."""
    return [
        *_signature_problems(manifest),
        *_buffer_problems(manifest, weights),
        *_step_problems(manifest),
        *_state_problems(manifest, weights),
        *_code_problems(manifest),
        *_device_problems(manifest),
        *_import_problems(manifest),
        *argument_problems(manifest.input_tree, len(manifest.signature.inputs)),
        *tree_problems(manifest.output_tree, len(manifest.signature.outputs), "outputs"),
    ]


def _signature_problems(manifest: Manifest) -> Iterator[str]:
    signature = manifest.signature
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
    if signature.guards and "guards" not in manifest.features:
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


def _buffer_problems(manifest: Manifest, weights: Mapping[str, StoredTensor]) -> Iterator[str]:
    signature = manifest.signature
    counts = {"input": len(signature.inputs), "output": len(signature.outputs), "state": len(signature.states)}
    for number, buffer in enumerate(manifest.buffers):
        if buffer.kind in counts and not 0 <= buffer.index < counts[buffer.kind]:
            yield f"buffer {number} is {buffer.kind} {buffer.index} of {counts[buffer.kind]}"
        if buffer.kind == "weight" and buffer.weight not in weights:
            yield f"buffer {number} is the weight {buffer.weight!r}, which is not stored"
        if buffer.kind == "alias" and root_buffer(manifest, number) is None:
            yield f"buffer {number} is an alias that leads nowhere"
    served = {root for step in manifest.steps for root in (root_buffer(manifest, b) for b in step.buffers)}
    outputs = {manifest.buffers[root].index for root in served if root is not None and _is_output(manifest, root)}
    for index, spec in enumerate(signature.outputs):
        if index not in outputs:
            yield f"output {spec.name!r} is written by no step"


def _is_output(manifest: Manifest, buffer: int) -> bool:
    return manifest.buffers[buffer].kind == "output"


def root_buffer(manifest: Manifest, number: int) -> int | None:
    """Follows aliases to the buffer that owns the memory; None where a link leads out of the table or in a circle."""
    for _ in range(len(manifest.buffers) + 1):
        if not 0 <= number < len(manifest.buffers):
            return None
        if manifest.buffers[number].kind != "alias":
            return number
        number = manifest.buffers[number].target
    return None


def _step_problems(manifest: Manifest) -> Iterator[str]:
    for number, step in enumerate(manifest.steps):
        if not f"{step.name}{step.location}".isprintable():
            yield f"step {number} has a name that cannot be printed"
        if not (step.kernel in (COPY_KERNEL, JUMP_KERNEL, CHECK_KERNEL) or 0 <= step.kernel < len(manifest.kernels)):
            yield f"step {number} calls kernel {step.kernel} of {len(manifest.kernels)}"
        if any(not 0 <= buffer < len(manifest.buffers) for buffer in step.buffers):
            yield f"step {number} uses buffers {step.buffers} of {len(manifest.buffers)}"
        if step.kernel == COPY_KERNEL and len(step.buffers) != 2:
            yield f"step {number} copies between {len(step.buffers)} buffers"
        if step.kernel == JUMP_KERNEL and not 0 <= step.target <= len(manifest.steps):
            yield f"step {number} jumps to step {step.target} of {len(manifest.steps)}"
        if step.kernel == JUMP_KERNEL and len(step.buffers) > 1:
            yield f"step {number} jumps by {len(step.buffers)} buffers"
        if step.kernel == CHECK_KERNEL:
            yield from (f"step {number} {problem}" for problem in _check_problems(step, step.check))
            if "index_checks" not in manifest.features:
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


def _state_problems(manifest: Manifest, weights: Mapping[str, StoredTensor]) -> Iterator[str]:
    names = {spec.name for spec in manifest.signature.states}
    for state, weight in manifest.state_initials.items():
        if state not in names or weight not in weights:
            yield f"state {state!r} starts from the weight {weight!r}: one of them does not exist"


def _code_problems(manifest: Manifest) -> Iterator[str]:
    """Offsets into the code are checked against its size by the native loader, which takes 64 bits."""
    for number, kernel in enumerate(manifest.kernels):
        if kernel.device == HOST and not 0 <= kernel.offset < 1 << 62:
            yield f"kernel {number} starts at {kernel.offset}, outside of the code"
    if not 0 <= manifest.import_table_offset < 1 << 62:
        yield f"an import table at {manifest.import_table_offset} does not fit the code"


def _device_problems(manifest: Manifest) -> Iterator[str]:
    """A kernel of the host touches the host's memory only, a launch only that of its device."""
    names = [spec.name for spec in manifest.devices]
    if len(set(names)) != len(names):
        yield "two devices have one name"
    for spec in manifest.devices:
        if not DEVICE_NAME.fullmatch(spec.name) or not spec.level.isprintable():
            yield f"a device has the name {spec.name[:40]!r}"
    if names and "devices" not in manifest.features:
        yield "it has devices and does not list them as a required feature"
    for number, kernel in enumerate(manifest.kernels):
        if kernel.device != HOST:
            entry = manifest.entries.get(DEVICE_ENTRY.format(kernel.device))
            end = kernel.offset + kernel.size
            if kernel.device not in names or entry is None or not 0 <= kernel.offset <= end <= entry.size:
                yield f"kernel {number} is no part of the code of a device"
    for number, buffer in enumerate(manifest.buffers):
        if buffer.memory != HOST and (buffer.memory not in names or buffer.kind not in ("arena", "weight", "alias")):
            yield f"buffer {number} is {buffer.kind} in the memory {buffer.memory!r}"
        target = root_buffer(manifest, number)
        if target is not None and manifest.buffers[target].memory != buffer.memory:
            yield f"buffer {number} is an alias into another memory"
    for number, step in enumerate(manifest.steps):
        if step.kernel != COPY_KERNEL and step.kernel < len(manifest.kernels):
            memory = manifest.kernels[step.kernel].device if step.kernel >= 0 else HOST
            inside = [buffer for buffer in step.buffers if 0 <= buffer < len(manifest.buffers)]
            if any(manifest.buffers[buffer].memory != memory for buffer in inside):
                yield f"step {number} runs on {memory or 'the host'} and uses buffers of another memory"


def _import_problems(manifest: Manifest) -> Iterator[str]:
    for site in manifest.import_sites:
        inside = 0 <= site.offset <= manifest.import_table_offset - 4 and -(1 << 31) <= site.addend < 1 << 31
        if not (inside and 0 <= site.slot < len(manifest.imports)):
            yield f"an import site at {site.offset} refers to slot {site.slot} of {len(manifest.imports)}"
