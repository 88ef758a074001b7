"""The parts of an exported program that capture reads and changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec


@dataclass
class FunctionalProgram:
    """The parts of an exported program that capture reads, its graph functional and its own."""

    graph: fx.Graph
    graph_signature: ExportGraphSignature
    state_dict: dict[str, Any]
    constants: dict[str, Any]
    range_constraints: dict[Any, Any]
    out_spec: Any

    @staticmethod
    def of(exported: ExportedProgram) -> FunctionalProgram:
        """Takes the parts of ``exported`` themselves: a change to one changes the other."""
        return FunctionalProgram(
            exported.graph,
            exported.graph_signature,
            exported.state_dict,
            exported.constants,
            exported.range_constraints,
            exported.call_spec.out_spec,
        )

    def tensor_of(self, spec: InputSpec) -> Any:
        """Returns what the placeholder of a parameter, a buffer or a constant stands for; None where it has no data.

        A buffer that is not persistent is among the constants, under its own name.
        """
        name = spec.target or ""
        first, second = self.state_dict, self.constants
        if spec.kind == InputKind.CONSTANT_TENSOR or spec.persistent is False:
            first, second = second, first
        return first[name] if name in first else second.get(name)

    def add_constant(self, stem: str, value: torch.Tensor) -> str:
        """Adds a constant under a name that nothing has: no tensor, no module on the way to one, no node.

        Each time a graph is traced again the names of its nodes begin anew, while the constants keep theirs.
        """
        targets = [spec.target for spec in self.graph_signature.input_specs if spec.target is not None]
        taken = {name.partition(".")[0] for name in [*self.state_dict, *self.constants, *targets]}
        taken.update(node.name for node in self.graph.nodes)
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        assert name not in {**self.constants, **self.state_dict}, f"constant {name!r} has a value already"
        self.constants[name] = value
        return name
