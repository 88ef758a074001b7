"""Activations of a program as further outputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lowerkit.mlir import func, ir
from lowerkit.passes.rewriting import shape_of
from lowerkit.program.program import Program
from lowerkit.quantization.sites import Sites, products_of
from lowerkit.runtimes.manifest import Signature, TensorSpec


def observed(program: Program, sites: Sites, in_floats: Collection[int] = ()) -> Program:
    """Returns a copy of a raised program with what its products read as further outputs, one for each activation.

    Args:
        program: as :func:`find_sites` saw it, or after :func:`insert`: then activations are given as rounded.
        sites: of the program.
        in_floats: as :func:`insert` was given; an activation that others read as well is given as they read it.
    """
    copy = program_with_module_of_its_own(program)
    products = products_of(copy.module)
    readers = {site.value: site for site in reversed(sites.sites)}
    integers = [site for place, site in enumerate(sites.sites) if place not in in_floats]
    readers.update({site.value: site for site in reversed(integers)})
    append_outputs(copy, [products[readers[value].index].operands[0] for value in range(sites.values)])
    return copy


def program_with_module_of_its_own(program: Program) -> Program:
    """Returns a copy whose module can be changed."""
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
    return replace(program, module=module)


def append_outputs(program: Program, values: Sequence[ir.Value]) -> None:
    """Lets ``@main`` return f32 tensors beside its outputs, and the signature say so."""
    main = program.main.opview
    assert isinstance(main, func.FuncOp)
    terminator = list(main.entry_block.operations)[-1].operation
    everything = [*terminator.operands, *values]
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(everything)
    terminator.erase()
    inputs = [argument.type for argument in main.entry_block.arguments]
    with program.context:
        kind = ir.FunctionType.get(inputs, [value.type for value in everything])
        main.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
    specs = [TensorSpec(f"observed.{place}", "f32", [*shape_of(value)]) for place, value in enumerate(values)]
    old = program.signature
    program.signature = Signature(old.inputs, [*old.outputs, *specs], old.states, old.dims, old.guards)
