"""One compiled program that can be run with any of its products in int8 and the others in floats.

Every product is there twice, on rounded operands and on floats, and a further input of the program, one number for
each product, chooses which result goes on. So measuring what a choice of products costs takes a run, not a
compilation. A run costs about what the float model and the quantized model cost together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.dialect.scalar_builder import select
from lowerkit.mlir import func, ir
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.rewriting import element_of, empty_like, operations, shape_of
from lowerkit.program.program import Program
from lowerkit.quantization.calibration_data import Sample
from lowerkit.quantization.insertion import QuantizedActivations, Scaling, quantized_weight
from lowerkit.quantization.sites import Sites, products_of
from lowerkit.quantization.taps import append_outputs, program_with_module_of_its_own
from lowerkit.runtimes.manifest import Signature, TensorSpec

if TYPE_CHECKING:
    from lowerkit.compiler import CompileOptions

Array = np.ndarray[Any, Any]


class SwitchedModel:
    """A model whose products are switched between int8 and floats at each run.

    Args:
        program: raised, in floats, of fixed shapes; not changed.
        sites: of the program.
        scalings: of each distinct activation.
        options: how to compile.
    """

    def __init__(
        self, program: Program, sites: Sites, scalings: Sequence[Scaling], options: CompileOptions, on_progress: Any
    ) -> None:
        from lowerkit.compiler import compile_program

        self._sites = sites
        self._scalings = scalings
        self._outputs = len(program.signature.outputs)
        switched = switched_program(program, sites, scalings)
        self._session = compile_program(switched, replace(options, golden=False), on_progress).session

    def run(self, sample: Sample, in_floats: Collection[int]) -> tuple[list[Array], list[Array]]:
        """Runs a sample.

        Args:
            sample: the model's inputs.
            in_floats: places in ``sites.sites`` of the products that compute in floats; all others are in int8.

        Returns:
            the model's outputs, and what the products read of each distinct activation: rounded, unless all its
            readers are in floats, and with its smoothing undone.
        """
        integers = [place not in in_floats for place in range(len(self._sites.sites))]
        rounded = {site.value for site, integer in zip(self._sites.sites, integers, strict=True) if integer}
        switches = [*integers, *(value in rounded for value in range(self._sites.values))]
        self._session.reset()
        found = self._session.run(*sample, *(np.array(switch, np.bool_) for switch in switches))
        activations = [
            self._scalings[value].unsmoothed(array) if value in rounded else array
            for value, array in enumerate(found[self._outputs :])
        ]
        return found[: self._outputs], activations


def switched_program(program: Program, sites: Sites, scalings: Sequence[Scaling]) -> Program:
    """Returns a copy with an input i1 of rank 0 for each product and each activation, and the activations as outputs.

    True computes a product in int8, and shows an activation as products in int8 read it.
    """
    copy = program_with_module_of_its_own(program)
    copy.example_inputs = None
    copy.input_tree = None
    names = [f"product.{place}" for place in range(len(sites.sites))]
    names += [f"activation.{value}" for value in range(sites.values)]
    switches = _append_inputs(copy, names)
    products = products_of(copy.module)
    activations = QuantizedActivations(copy, scalings)
    shown: list[ir.Value] = []
    for place, site in enumerate(sites.sites):
        op = products[site.index]
        rounded, weight = activations.of(site.value, op), quantized_weight(copy, op, scalings[site.value])
        if site.value == len(shown):
            with copy.context, ir.InsertionPoint(op), op.location:
                shown.append(_chosen(switches[len(sites.sites) + site.value], rounded, op.operands[0]))
        _switch(op, rounded, weight, switches[place])
    append_outputs(copy, shown)
    return copy


def _switch(op: ir.Operation, rounded: ir.Value, weight: ir.Value, switch: ir.Value) -> None:
    """Computes a product on rounded operands too, and lets the switch choose."""
    block = main_block_of(op)
    following = operations(block)
    after = following[following.index(op) + 1]
    with op.context, ir.InsertionPoint(after), op.location:
        integer = op.clone().operation
        integer.operands[0], integer.operands[1] = rounded, weight
        chosen = _chosen(switch, integer.results[0], op.results[0])
    op.results[0].replace_all_uses_except(chosen, chosen.owner.operation)


def main_block_of(op: ir.Operation) -> ir.Block:
    """Returns the block that holds ``op``."""
    block = op.block
    assert isinstance(block, ir.Block)
    return block


def _chosen(switch: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    rank = len(shape_of(then))
    init = empty_like(then, range(rank), element_of(then))
    maps = [(), identity_map(rank), identity_map(rank)]
    inputs = [switch, then, otherwise]
    return build_elementwise(inputs, maps, [init], lambda e: [select(e[0], e[1], e[2])], ir.Location.current).results[0]


def _append_inputs(program: Program, names: Sequence[str]) -> list[ir.Value]:
    """Gives ``@main`` further inputs i1 of rank 0."""
    main = program.main.opview
    assert isinstance(main, func.FuncOp)
    with program.context, ir.Location.unknown():
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        added = [main.entry_block.add_argument(kind, ir.Location.current) for _ in names]
        inputs = [argument.type for argument in main.entry_block.arguments]
        results = ir.FunctionType(ir.TypeAttr(main.operation.attributes["function_type"]).value).results
        main.operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    old = program.signature
    specs = [TensorSpec(f"in_int8.{name}", "i1", []) for name in names]
    program.signature = Signature([*old.inputs, *specs], old.outputs, old.states, old.dims, old.guards)
    return added
