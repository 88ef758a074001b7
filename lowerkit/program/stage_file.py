"""A program at a stage boundary, as files: ``NAME.mlir`` (IR with locations) and ``NAME.mlir.weights`` beside it.

The first line of the IR file is a comment with the signature, so that the pair alone takes up the pipeline again.
The weights file is safetensors; derived weights are written as data.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lowerkit.dialect import DIALECT_VERSION
from lowerkit.dialect.context import new_context
from lowerkit.errors import InputError, VerifyError
from lowerkit.mlir import ir, walk
from lowerkit.program.dtypes import NUMPY_DTYPES, name_of
from lowerkit.program.program import Program
from lowerkit.program.weights import Shard, WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut

_HEAD = "// lowerkit stage: "


class _Head(msgspec.Struct):
    stage: str
    source: str
    signature: Signature
    output_tree: object = None
    input_tree: object = None
    dialect: str = ""
    placements: list[dict[str, Any]] = []
    mesh: list[MeshAxis] = []
    shared: dict[str, list[tuple[str, int]]] = {}
    state_cuts: dict[str, list[StateCut]] = {}


def write_stage(program: Program, path: Path) -> None:
    """Writes ``program`` as ``path`` and ``path`` + ``.weights``."""
    from safetensors.numpy import save_file

    used: dict[str, np.ndarray] = {}
    shared: dict[str, list[tuple[str, int]]] = {}

    def collect(operation: ir.Operation) -> None:
        if operation.name not in ("lk.weight", "lk.state_read"):
            return
        symbol = ir.StringAttr(operation.attributes["symbol"]).value
        if symbol in program.weights:  # a state without an initial value starts from zeros
            array = np.ascontiguousarray(program.weights.get(symbol))
            used[symbol] = array.view(np.uint16) if NUMPY_DTYPES["bf16"] == array.dtype else array
            shard = program.weights.shard(symbol)
            if shard is not None:
                shared[symbol] = list(shard.axes)

    walk(program.module.operation, collect)
    head = msgspec.json.encode(
        _Head(
            program.stage,
            program.source,
            program.signature,
            program.output_tree,
            program.input_tree,
            DIALECT_VERSION,
            program.placements,
            program.mesh,
            shared,
            program.state_cuts,
        )
    ).decode()
    save_file(used, str(path) + ".weights")
    path.write_text(f"{_HEAD}{head}\n{program.text(locations=True)}\n")


def read_stage(path: Path, stage: str) -> Program:
    """Reads what :func:`write_stage` wrote.

    Raises:
        InputError: LK1001/LK1002, a file is missing or is not of this form, or holds another stage or dialect.
        VerifyError: LK3002, the IR does not parse or verify.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("LK1001", f"{path} cannot be read: {error}") from error
    first, _, body = text.partition("\n")
    if not first.startswith(_HEAD):
        raise InputError(
            "LK1002", f"{path} is no stage file", hint="write one with lowerkit compile --compile-to STAGE"
        )
    try:
        head = msgspec.json.decode(first[len(_HEAD) :], type=_Head)
        arrays = load_file(str(path) + ".weights")
    except (msgspec.DecodeError, SafetensorError, OSError) as error:
        raise InputError("LK1002", f"{path} or its .weights file is damaged: {error}") from error
    if head.stage != stage:
        raise InputError(
            "LK1002", f"{path} holds stage {head.stage!r}, not {stage!r}", hint=f"--compile-from {head.stage}"
        )
    if head.dialect != DIALECT_VERSION:
        raise InputError(
            "LK1002",
            f"{path} holds version {head.dialect or 'unknown'} of the dialect, this lowerkit reads {DIALECT_VERSION}",
            hint=f"write it again: lowerkit compile MODEL --compile-to {head.stage}",
        )
    context = new_context()
    try:
        module = ir.Module.parse(body, context=context)
    except ir.MLIRError as error:
        raise VerifyError("LK3002", f"the IR in {path} is not valid: {error}") from error
    weights = WeightStore()
    declared = _declared_types(module)
    for name, array in arrays.items():
        data = array.view(NUMPY_DTYPES["bf16"]) if declared.get(name) == "bf16" else array
        if name in head.shared:
            shard = Shard(tuple(head.shared[name]))
            weights.derive(name, (), partial(_same, data), dtype=name_of(data.dtype), shape=data.shape, shard=shard)
        else:
            weights.add(name, data)
    trees = (head.output_tree, head.input_tree)
    return Program(
        context,
        module,
        weights,
        head.signature,
        head.source,
        head.stage,
        *trees,
        placements=head.placements,
        mesh=head.mesh,
        state_cuts=head.state_cuts,
    )


def _same(data: np.ndarray) -> np.ndarray:
    return data


def _declared_types(module: ir.Module) -> dict[str, str]:
    """Returns weight symbol -> element type as the IR states it."""
    found: dict[str, str] = {}

    def collect(operation: ir.Operation) -> None:
        if operation.name == "lk.weight":
            symbol = ir.StringAttr(operation.attributes["symbol"]).value
            found[symbol] = str(ir.RankedTensorType(operation.results[0].type).element_type)

    walk(module.operation, collect)
    return found
