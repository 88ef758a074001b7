"""What every front end produces and every later stage consumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.mlir import ir
from lowerkit.program.files import SourceFile
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerkit.program.functional_program import FunctionalProgram

Array = np.ndarray[Any, Any]

OutputTree = Any
"""JSON as it stands: nested ``{"kind": "tuple" | "list", "items": [...]}``, ``{"kind": "dict", "keys": [...], "items":
[...]}``, ``{"kind": "constant", "value": ...}``, an int (the index of an output), or None (None was returned)."""


@dataclass
class Program:
    """A captured model on its way down.

    Attributes:
        context: the MLIR context that owns ``module``.
        module: one ``func.func @main``; its arguments follow ``signature.inputs``, its results ``signature.outputs``.
        weights: the data behind ``lk.weight`` ops.
        signature: names, element types, shapes, symbolic dims and mutated state.
        source: what was captured, in the user's words: a path, or the class of a module.
        stage: the stage of the IR, ``"captured"`` at first.
        output_tree: how the outputs were nested in what the model returned.
        input_tree: how the inputs were nested in the arguments; see :mod:`lowerkit.runtimes.nesting`.
        eager: the model itself, on numpy arrays in the order of ``signature.inputs``, returning a list of numpy
            arrays in the order of ``signature.outputs``, then the final ``signature.states``; for parity. Each run
            starts from the initial states. None where there is nothing to run.
        eager_module: the ``nn.Module`` or ScriptModule behind ``eager``, for benchmarks; None for ONNX and
            for what came as an ExportedProgram: ``exported.module()`` makes it.
        arguments: makes the arguments of ``eager_module`` (positional, by keyword) from arrays in the order of
            ``signature.inputs``; None where there is nothing to run, and for ONNX.
        functional: the graph that was imported, where the model came through an ExportedProgram: its nodes are those
            that locations name, so that parity checks can run it node by node.
        exported: the ExportedProgram, where the model came through one.
        onnx_model: the path or the ``onnx.ModelProto`` in memory, where the model came from one.
        example_inputs: arrays that fit ``signature.inputs``, where the user gave values.
        sources: the files that weights are read from when they are asked for.
        remarks: what the user should know of how it was captured.
        mesh: the axes of the ranks that run the program together, from stage ``canonical`` on; one device: none.
        certificate: the proof that the ranks compute what the model does, where it was split among them.
        state_cuts: of each state of which a rank has a part, how it was cut; the signature has the shape of the part.
        place: of a program that some ranks of the mesh run alone, where they are along its axes: ``{"pp": 1}``.
        placements: where each op runs, from stage ``partitioned`` on: JSON, as in the metadata of an artifact.
    """

    context: ir.Context
    module: ir.Module
    weights: WeightStore
    signature: Signature
    source: str
    stage: str = "captured"
    output_tree: OutputTree = None
    input_tree: OutputTree = None
    eager: Callable[..., list[Array]] | None = None
    eager_module: Any = field(default=None, repr=False)
    arguments: Callable[[Sequence[Array]], tuple[tuple[Any, ...], dict[str, Any]]] | None = field(
        default=None, repr=False
    )
    functional: FunctionalProgram | None = field(default=None, repr=False)
    exported: ExportedProgram | None = None
    onnx_model: Any = field(default=None, repr=False)
    example_inputs: list[Array] | None = field(default=None, repr=False)
    sources: list[SourceFile] = field(default_factory=list[SourceFile], repr=False)
    remarks: list[str] = field(default_factory=list[str])
    mesh: list[MeshAxis] = field(default_factory=list[MeshAxis])
    certificate: Any = field(default=None, repr=False)
    state_cuts: dict[str, list[StateCut]] = field(default_factory=dict[str, list[StateCut]])
    place: dict[str, int] = field(default_factory=dict[str, int])
    placements: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]], repr=False)

    @property
    def main(self) -> ir.Operation:
        """The ``func.func @main``."""
        return ir.SymbolTable(self.module.operation)["main"].operation

    def copy(self) -> Program:
        """Returns a program with a module of its own, to be lowered apart; weights and all else are shared."""
        text = self.module.operation.get_asm(enable_debug_info=True)
        return replace(self, module=ir.Module.parse(text, self.context))

    def text(self, *, locations: bool = False) -> str:
        """Returns the module as text."""
        return self.module.operation.get_asm(enable_debug_info=locations)
