"""Random ONNX nodes of every opset, captured and interpreted, held against ONNX Runtime and ONNX's own evaluator.

    python tools/fuzz/onnx_ops.py --count 20000 --seed 1
    python tools/fuzz/onnx_ops.py --seed 1 --only 7             # one again, with its text

ONNX's own node tests have an example or two of each op: extents that are alike hide which one a conversion took, and
attributes are seldom given without the operands that go with them. A node is decided by (seed, number) alone. What
agrees with one of the two judges is right; a node that neither runs is none.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import random
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lowerkit
from graph.children import in_child
from graph.run import Outcome
from lowerkit.capture.onnx.eager import exact_session
from lowerkit.errors import LowerkitError
from onnx_node import elementwise_cases, layer_cases, movement_cases
from onnx_node.draft import OPSETS, Array, Draft

_LOOSE = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}
_OF_EVALUATOR = {**_LOOSE, np.dtype(np.float64): 2e-7}
"""Where it alone computes: some ops of float64 it takes in single precision."""
_SECONDS = 60.0
"""Of processor time that a node may take."""
_TOGETHER = 25
CASES = {**elementwise_cases.CASES, **layer_cases.CASES, **movement_cases.CASES}


def draft(rng: random.Random, op_type: str) -> Draft:
    """A random node of an op, its opset among those that have it."""
    least = min(_versions()[op_type])
    found = Draft(rng, op_type, rng.choice([opset for opset in OPSETS if opset >= least]))
    CASES[op_type](found)
    return found


@functools.cache
def _versions() -> dict[str, list[int]]:
    """The opsets in which each op was new or changed."""
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            found.setdefault(schema.name, []).append(schema.since_version)
    return found


def model_of(made: Draft) -> onnx.ModelProto:
    """The model, its types inferred; raises what ONNX's inference refuses."""
    outputs = [f"y{place}" for place in range(made.outputs)]
    node = helper.make_node(made.op_type, made.operands, outputs, name="node", **made.attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in made.values.items()
            if name not in made.constants
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(made.values[name], name) for name in made.values if name in made.constants],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", made.opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model


Tolerances = Mapping[np.dtype[Any], float]


def _by_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX's evaluator gives; raises what it raises, and ValueError where it is known to be wrong."""
    node = model.graph.node[0]
    grouped = any(attribute.name == "group" and attribute.i > 1 for attribute in node.attribute)
    if node.op_type == "ConvTranspose" and grouped and len(node.input) > 2:
        raise ValueError("it adds the bias of the first group in each")
    rounds_up = any(attribute.name == "ceil_mode" and attribute.i for attribute in node.attribute)
    if node.op_type == "LpPool" or (
        node.op_type == "AveragePool" and (rounds_up or any(np.isnan(x).any() for x in feeds.values()))
    ):
        raise ValueError("it puts the reach over the end in front, counts it, and leaves NaN out")
    if node.op_type == "Conv" and not all(np.isfinite(x).all() for x in feeds.values()):
        raise ValueError("it puts zeros between the taps of dilated filters, and multiplies them by infinities")
    if node.op_type == "GlobalMaxPool":  # it gives three dims another shape
        (x,) = feeds.values()
        return [x.max(tuple(range(2, x.ndim)), keepdims=True)]
    results: Any = ReferenceEvaluator(model).run(None, dict(feeds))
    return [np.asarray(y) for y in results]


def _judges(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[tuple[list[Array], Tolerances]]:
    import onnxruntime

    found: list[tuple[list[Array], Tolerances]] = []
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.output]
    names = [value.name for value in model.graph.input]
    feeds: Any = dict(zip(names, inputs, strict=True))
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        results: Any = exact_session(options, model.SerializeToString()).run(None, feeds)
        found.append(([np.asarray(y) for y in results], _LOOSE))
    except Exception:
        pass
    with contextlib.suppress(Exception):
        found.append((_by_evaluator(model, feeds), _LOOSE if found else _OF_EVALUATOR))
    return [
        (ys, loose)
        for ys, loose in found
        if all([*y.shape] == shape for y, shape in zip(ys, shapes, strict=True) if all(shape))
    ]


def _agree(ours: Array, other: Array, tolerances: Tolerances) -> bool:
    if ours.shape != other.shape or ours.dtype != other.dtype:
        return False
    if ours.dtype.kind != "f":
        return np.array_equal(ours, other)
    loose = tolerances[ours.dtype]
    wide, against = ours.astype(np.float64), other.astype(np.float64)
    finite = against[np.isfinite(against)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return np.allclose(wide, against, rtol=loose, atol=loose * largest, equal_nan=True)


def outcome_of(made: Draft) -> Outcome:
    """What became of one node."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            model = model_of(made)
        except Exception as error:
            return Outcome("no model", type(error).__name__, str(error)[:300])
        inputs = [made.values[value.name] for value in model.graph.input]
        judges = _judges(model, inputs)
        if not judges:
            return Outcome("no judge")
        try:
            compiled = lowerkit.compile(model, use_cache=False, workers=1, threads=1)
            ours = compiled.session.run(*inputs)
        except LowerkitError as error:
            return Outcome("internal" if error.exit_code == 5 else "refused", error.code, str(error)[:600])
        except Exception:
            return Outcome("internal", "traceback", traceback.format_exc()[-1500:])
        for judge, tolerances in judges:
            if len(judge) == len(ours) and all(_agree(*pair, tolerances) for pair in zip(ours, judge, strict=True)):
                return Outcome("passed")
        shown = (*ours, *(y for judge, _ in judges for y in judge))
        detail = [f"{y.dtype}{list(y.shape)} {y.reshape(-1)[:6]}" for y in shown]
        return Outcome("wrong", "numbers", "\n".join(detail))


def outcomes_of(batch: Sequence[Draft]) -> list[Outcome]:
    """What became of each, all in one process; each in its own where that one ended."""

    def together() -> Outcome:
        return Outcome("passed", "", json.dumps([vars(outcome_of(made)) for made in batch]))

    whole = in_child(together, _SECONDS * len(batch))
    if whole.kind == "passed":
        return [Outcome(**entry) for entry in json.loads(whole.detail)]
    return [in_child(lambda made=made: outcome_of(made), _SECONDS) for made in batch]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--count", default=1000, help="Nodes to run.")
@click.option("--seed", default=0, help="Seed of the run; 0 draws one.")
@click.option("--only", type=int, help="Run this node alone and print it.")
@click.option("--op", "ops", multiple=True, help="Only these ops.")
@click.option("--first", default=0, help="Number of the first node.")
def main(count: int, seed: int, only: int | None, ops: tuple[str, ...], first: int) -> None:
    seed = seed or random.SystemRandom().randrange(1, 1 << 31)
    print(f"seed {seed}", flush=True)
    totals: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    failed = 0

    def made_of(number: int) -> Draft:
        rng = random.Random(f"{seed}:{number}")
        return draft(rng, rng.choice(ops or tuple(CASES)))

    def results() -> Iterator[tuple[int, Draft, Outcome]]:
        numbers = range(first, first + count) if only is None else [only]
        for start in range(0, len(numbers), _TOGETHER):
            some = numbers[start : start + _TOGETHER]
            batch = [made_of(number) for number in some]
            yield from zip(some, batch, outcomes_of(batch), strict=True)

    for number, made, outcome in results():
        totals[f"{outcome.kind} {outcome.code}".strip()] += 1
        if outcome.kind in ("refused", "no judge", "no model"):
            refused[f"{made.op_type} {outcome.kind} {outcome.code}"] += 1
        if outcome.failed or only is not None:
            failed += outcome.failed
            values = {name: f"{value.dtype}{list(value.shape)}" for name, value in made.values.items()}
            constants = {name: made.values[name].tolist() for name in made.constants if made.values[name].size < 9}
            print(f"--- {number}: {outcome.kind} {outcome.code}: {made.op_type}-{made.opset} {made.operands} {values} "
                  f"{made.attributes} {constants}\n{outcome.detail}", flush=True)  # fmt: skip
    print(", ".join(f"{n} {name}" for name, n in totals.most_common()))
    print("not run:", ", ".join(f"{n} {name}" for name, n in refused.most_common()))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
