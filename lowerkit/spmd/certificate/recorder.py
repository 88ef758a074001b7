"""Writes down what a split does, and proves it at once: who is called around each run of the pass."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.program.weights import WeightStore
from lowerkit.spmd.certificate.graph import Graph
from lowerkit.spmd.certificate.probing import facts_of
from lowerkit.spmd.certificate.prover import Proof, prove
from lowerkit.spmd.certificate.reading import number_ops, read_graph, strip_numbers


class Recorder:
    """Proves each axis after its split."""

    def __init__(self, weights: WeightStore) -> None:
        self._weights = weights
        self._before: Graph | None = None
        self.proofs: list[Proof] = []

    def before(self, module: ir.Module) -> None:
        number_ops(module)
        self._before = read_graph(module)

    def after(self, module: ir.Module, axis: str, ranks: int) -> None:
        assert self._before is not None, "before is called first"
        after = read_graph(module)
        strip_numbers(module)
        facts = facts_of(self._before, after, self._weights, axis, ranks)
        self.proofs.append(prove(self._before, after, axis, ranks, facts))
