"""Writes down what a split does, and proves it at once: called around each run of the passes that split."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lowerkit.mlir import ir
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.certificate import (
    AxisStep,
    Certificate,
    PlaceMeetings,
    shapes_of_inputs,
    stage_step_of,
    step_of,
)
from lowerkit.spmd.certificate.facts import Fact
from lowerkit.spmd.certificate.graph import Graph, without_numbers
from lowerkit.spmd.certificate.probing import facts_of
from lowerkit.spmd.certificate.proof import Proof
from lowerkit.spmd.certificate.prover import prove
from lowerkit.spmd.certificate.reading import number_ops, read_graph, strip_numbers
from lowerkit.spmd.certificate.stages import prove_stages


class Recorder:
    """Proves the splits of one program, in the order in which they are made.

    Example::

        recorder = Recorder(program.weights, program.signature)
        for axis in axes:
            recorder.before(program.module)
            ...  # split along the axis
            recorder.after(program.module, axis.name, axis.ranks)
        certificate = recorder.certificate(mesh)
    """

    def __init__(self, weights: WeightStore, signature: Signature) -> None:
        """Takes the store of the program's weights, and its signature."""
        self._weights = weights
        self._inputs = shapes_of_inputs(signature)
        self._graphs: list[Graph] = []
        self._axes: list[AxisStep] = []
        self._places: list[PlaceMeetings] = [PlaceMeetings({}, [])]
        self._invariant = False
        self._before = -1

    def before(self, module: ir.Module) -> None:
        """Numbers the ops of a program that is about to be split, and keeps it as it is."""
        self._before = self._add(read_graph(module))
        number_ops(module)

    def after(self, module: ir.Module, axis: str, ranks: int) -> None:
        """Proves the program that each rank along an axis runs, and takes the numbers off it.

        Raises:
            VerifyError: LK3006, it cannot be proved.
        """
        after = read_graph(module)
        strip_numbers(module)
        before = self._graphs[self._before]
        facts = facts_of(before, after, self._weights, axis, ranks)
        proof = prove(before, after, axis, ranks, facts, self._inputs)
        self._keep(axis, ranks, after, facts, proof)

    def invariant(self) -> None:
        """Says that floats are to be added in one order on every mesh, which is proved too."""
        self._invariant = True

    def _keep(self, axis: str, ranks: int, after: Graph, facts: Sequence[Fact], proof: Proof) -> None:
        numbers = (self._before, self._add(after))
        self._axes.append(step_of(axis, ranks, numbers, facts, proof))
        self._places = [PlaceMeetings({}, proof.meetings)]

    def certificate(self, mesh: Sequence[MeshAxis]) -> Certificate:
        """Returns the certificate of what was proved."""
        symbols = dict.fromkeys(symbol for graph in self._graphs[-1:] for symbol in graph.weights)
        shards = {symbol: self._weights.shard(symbol) for symbol in symbols}
        shared = {symbol: [name for name, _ in shard.axes] for symbol, shard in shards.items() if shard is not None}
        parts = (self._inputs, self._graphs, self._axes, None, self._places, shared, self._invariant)
        return Certificate(list(mesh), *parts)

    def _add(self, graph: Graph) -> int:
        return add_graph(self._graphs, graph)


def with_stages(certificate: Certificate, whole: ir.Module, axis: str, modules: Sequence[ir.Module]) -> Certificate:
    """Proves the programs of the stages along an axis; returns the certificate with them.

    Args:
        certificate: of the program that was cut.
        whole: that program, which has not changed.
        axis: of the pipeline.
        modules: what each stage runs, in their order.

    Raises:
        VerifyError: LK3006, a stage computes something else; LK3007, they wait for each other.
    """
    graphs = list(certificate.graphs)
    before = add_graph(graphs, read_graph(whole))
    stages = [read_graph(module) for module in modules]
    proof = prove_stages(graphs[before], stages, axis, certificate.shapes)
    step = stage_step_of(axis, before, [add_graph(graphs, stage) for stage in stages], proof)
    places = [PlaceMeetings({axis: number}, own) for number, own in enumerate(proof.meetings)]
    return replace(certificate, graphs=graphs, stages=step, meetings=places)


def add_graph(graphs: list[Graph], graph: Graph) -> int:
    """Adds a program to a list that holds each once: that behind one split is that before the next."""
    unnumbered = without_numbers(graph)
    for number, known in enumerate(graphs):
        if without_numbers(known) == unnumbered:
            return number
    graphs.append(graph)
    return len(graphs) - 1
