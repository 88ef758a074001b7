"""What the float model computes on the calibration data, and how far the quantized model is from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import UnsupportedError
from lowerkit.parity.gate_b import GateB, Output, judge_activation
from lowerkit.parity.metrics import compare
from lowerkit.quantization.calibration_data import Sample
from lowerkit.quantization.insertion import Scaling, insert
from lowerkit.quantization.methods import CalibrationMethod
from lowerkit.quantization.sites import Sites, find_sites
from lowerkit.quantization.taps import observed

if TYPE_CHECKING:
    from lowerkit.capture.program import Program
    from lowerkit.compiler import Compiled, CompileOptions

Array = np.ndarray[Any, Any]
Progress = Callable[[str], None]


@dataclass
class Observation:
    """A program of fixed shapes at stage ``raised``, in floats, compiled with its activations as outputs."""

    program: Program
    sites: Sites
    floats: Compiled
    samples: Sequence[Sample]
    options: CompileOptions

    @property
    def inputs(self) -> Sample:
        """What gate B is judged on: the example inputs of the program, or else the first sample."""
        return self.program.example_inputs or self.samples[0]


def raised_sites(program: Program, options: CompileOptions, on_progress: Progress | None) -> Sites:
    """Raises a program, in place, and finds its products.

    Raises:
        UnsupportedError: LK4001, none can be quantized.
    """
    from lowerkit.compiler import lower_program

    lower_program(program, "raised", options, on_progress)
    sites = find_sites(program)
    if not sites.sites:
        raise UnsupportedError(
            "LK4001", "the model has no product that can be quantized", details=sorted(set(sites.refused))
        )
    return sites


def observe(
    program: Program,
    samples: Sequence[Sample],
    make_method: Callable[[], CalibrationMethod],
    methods: list[CalibrationMethod],
    options: CompileOptions,
    on_progress: Progress | None,
) -> Observation:
    """Runs the float model on samples of one shape.

    Args:
        program: captured; raised in place.
        samples: calibration data.
        make_method: makes a method for one activation.
        methods: they see the activations; made here where the list is empty.
        options: how to compile.
        on_progress: called with what runs now.
    """
    from lowerkit.compiler import compile_program

    sites = raised_sites(program, options, on_progress)
    floats = compile_program(observed(program, sites), options, on_progress)
    if on_progress is not None:
        on_progress("calibrating")
    methods += [] if methods else [make_method() for _ in range(sites.values)]
    count = len(program.signature.outputs)
    for sample in samples:
        for method, values in zip(methods, floats.session.run(*sample)[count:], strict=True):
            method.observe(values)
    return Observation(program, sites, floats, samples, options)


def judge(
    observation: Observation,
    scalings: Sequence[Scaling],
    in_floats: Collection[int],
    method: str,
    count_of_samples: int,
    on_progress: Progress | None,
) -> GateB:
    """Quantizes a copy of the observed program and compares it with the float model by gate B.

    Args:
        observation: of the float model; judged on its ``inputs``.
        scalings: of each distinct activation.
        in_floats: places of the products that stay in floats.
        method: the name of the calibration method, for the report.
        count_of_samples: for the report.
        on_progress: called with what runs now.
    """
    from lowerkit.compiler import compile_program

    program, sites = observation.program.copy(), observation.sites
    insert(program, sites, scalings, in_floats)
    tapped = compile_program(observed(program, sites, in_floats), observation.options, on_progress)
    inputs = observation.inputs
    if on_progress is not None:
        on_progress("comparing")
    count = len(program.signature.outputs)
    wanted, found = observation.floats.session.run(*inputs), tapped.session.run(*inputs)
    references = wanted[:count] if program.eager is None else program.eager(*inputs)
    report = GateB(program.source, method, count_of_samples, [], [], list(sites.refused), len(sites.sites))
    report.outputs = [
        Output(spec.name, compare(actual, reference))
        for spec, actual, reference in zip(program.signature.outputs, found, references, strict=False)
    ]
    rounded = {site.value for place, site in enumerate(sites.sites) if place not in in_floats}
    report.activations = [
        judge_activation(
            site.name,
            site.location,
            scalings[site.value] if site.value in rounded else None,
            wanted[count + site.value],
            found[count + site.value],
        )
        for site in sites.first_readers()
    ]
    return report
