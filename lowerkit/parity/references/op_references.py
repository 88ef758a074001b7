"""What each op is compared with: eager's value of its node, and the same in float64 where the graph can be trusted.

Eager has no values by node, so torch runs the graph that was imported, node by node. That graph is torch's export as
capture rewrote it: it is eager's only where the reference says so. Its outputs in float64 have to be the reference's
(:func:`lowerkit.parity.references.float64_reference.agrees`). Where they are not, its float64 values excuse nothing,
and an op passes only within the tolerance of the graph's own values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.parity.compare.taps import Reference, References, credible
from lowerkit.parity.gates import GATES, judge_model
from lowerkit.parity.noise import Noise, noise_of
from lowerkit.parity.permission import Permitted, permitted_of
from lowerkit.parity.references.float64_reference import PERTURBED_RUNS, agrees, perturbed_runs

if TYPE_CHECKING:
    from lowerkit.parity.compare.outputs import OutputJudge
    from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OpReferences:
    """The references of the nodes that are compared on one set of inputs.

    Attributes:
        program: the program; its graph or ONNX model is run again for the noise of a node.
        inputs: of the run.
        values: by node.
        untrusted: why the graph's float64 values were left out, empty where they were not.
        allowed: what targets may compute less exactly.
    """

    program: Program
    inputs: Sequence[Array]
    values: References
    untrusted: str = ""
    allowed: Collection[str] = ()

    def permitted(self, nodes: Collection[str]) -> dict[str, list[Permitted | None]]:
        """Measures how far what is allowed moves the tensors of nodes."""
        functional = self.program.functional
        if functional is None or not self.allowed:
            return {}
        from lowerkit.parity.references.permitted_runs import permitted_runs
        from lowerkit.parity.references.torch_nodes import node_values

        try:
            runs = permitted_runs(
                self.allowed, lambda: node_values(functional, self.inputs, nodes, float64=False, copies=True)
            )
        except Exception:  # the graph may compute indices with its products
            return {}
        names = sorted(self.allowed)
        return {
            node: [
                permitted_of(names, one.eager, [run[node][place] for run in runs if place < len(run.get(node, ()))])
                for place, one in enumerate(self.values.get(node, ()))
            ]
            for node in nodes
        }

    def noise(self, nodes: Collection[str]) -> dict[str, list[Noise | None]]:
        """Measures the rounding noise of nodes whose float64 values are known, for each of their tensors."""
        wanted = {name for name in nodes if any(one.float64 is not None for one in self.values.get(name, ()))}
        if not wanted:
            return {}
        try:
            runs = self._perturbed(wanted)
        except Exception:  # what PyTorch and ONNX Runtime raise for inputs that are no longer exactly the model's
            return {}
        found: dict[str, list[Noise | None]] = {}
        for name in wanted:
            found[name] = [
                None
                if one.float64 is None
                else noise_of(
                    one.eager, [run[name][place] for run in runs if place < len(run.get(name, ()))], one.float64
                )
                for place, one in enumerate(self.values[name])
            ]
        return found

    def _perturbed(self, nodes: Collection[str]) -> list[Mapping[str, Sequence[Array]]]:
        functional = self.program.functional
        if functional is not None:
            from lowerkit.parity.references.torch_nodes import node_values

            return perturbed_runs(self.inputs, lambda moved: node_values(functional, moved, nodes, float64=False))
        from lowerkit.parity.references.onnx_nodes import onnx_node_values

        runs = [onnx_node_values(self.program, self.inputs, nodes, seed) for seed in range(PERTURBED_RUNS)]
        return [{node: list(values.values()) for node, values in run.items()} for run in runs]


def op_references(
    program: Program, nodes: Collection[str], judge: OutputJudge, onnx_exact: Mapping[str, Array]
) -> OpReferences:
    """Runs the graph of ``program`` on the inputs of ``judge``.

    Args:
        nodes: the nodes to keep values of.
        onnx_exact: of an ONNX model its values in float64, by name.
    """
    if program.functional is None:
        from lowerkit.parity.references.onnx_nodes import onnx_node_values

        found = onnx_node_values(program, judge.inputs, nodes)
        return OpReferences(
            program,
            judge.inputs,
            {
                node: [Reference(value, credible(onnx_exact.get(name), value)) for name, value in values.items()]
                for node, values in found.items()
            },
        )
    from lowerkit.parity.references.torch_nodes import node_values, output_nodes

    ends = output_nodes(program.functional)
    own = node_values(program.functional, judge.inputs, {*nodes, *ends}, float64=False, stable_sorts=True)
    try:
        exact = node_values(program.functional, judge.inputs, {*nodes, *ends}, float64=True, stable_sorts=True)
        untrusted = _why_untrusted(program, [own.get(name) for name in ends], [exact.get(name) for name in ends], judge)
    except Exception as error:  # ops that take one element type only
        exact, untrusted = {}, f"the graph cannot be run in float64: {type(error).__name__}"
    values: dict[str, list[Reference]] = {}
    for node in nodes:
        tensors, partners = own.get(node, []), exact.get(node, [])
        usable = not untrusted and len(partners) == len(tensors)
        values[node] = [
            Reference(value, partners[place] if usable and partners[place].shape == value.shape else None)
            for place, value in enumerate(tensors)
        ]
    return OpReferences(program, judge.inputs, values, untrusted, judge.allowed)


def _why_untrusted(
    program: Program, own: Sequence[Sequence[Array] | None], exact: Sequence[Sequence[Array] | None], judge: OutputJudge
) -> str:
    """Returns the first output in which the graph is not what the reference computes; empty where there is none."""
    specs = [*program.signature.outputs[: len(judge.eager) - len(program.signature.states)], *program.signature.states]
    if not len(own) == len(exact) == len(specs):
        return f"the graph has {len(own)} outputs and states, the model {len(specs)}"
    for place, spec in enumerate(specs):
        mine, wide, eager, reference = own[place], exact[place], judge.eager[place], judge.reference.values[place]
        if not mine or not wide or mine[0].shape != eager.shape:
            return f"the graph has no value of {spec.name}"
        if spec.dtype in GATES and reference is not None:
            trusted = agrees(wide[0], reference, eager)
        else:
            trusted = judge_model(spec.dtype, mine[0], eager).passed
        if not trusted:
            return f"the captured graph is not the model: it differs in {spec.name}"
    return ""
