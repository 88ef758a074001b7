"""Which nodes of a segment a refusal is about, and what the user is told.

A refusal names ops and lines, not nodes. So the nodes of such an op at such a line are the ones; where it names none of
the segment, each kind of node is planned by itself, without compiling a kernel. What no node alone is refused for is
refused of the segment as a whole.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Mapping, Sequence
from traceback import FrameSummary
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.compiler import plan_program
from lowerkit.errors import LowerkitError, ResourceError, UnsupportedError, UsageError
from lowerkit.program.locations import inside_packages, is_own_code, is_users_file, users_line
from lowerkit.torch_backend.nodes import Refusal, describe, place_of
from lowerkit.torch_backend.segment import Segment
from lowerkit.torch_backend.segment_export import export_segment
from lowerkit.torch_backend.settings import Settings
from lowerkit.torch_backend.sizes import expression_of

logger = logging.getLogger("lowerkit.torch_backend")


def is_refusal(error: LowerkitError) -> bool:
    """Whether an error is about the graph; not about options, memory, disks, or a target of another package."""
    return not isinstance(error, (UsageError, ResourceError)) and error.code != "LK5003"


def refused_nodes(error: LowerkitError, segment: Segment, settings: Settings) -> dict[fx.Node, Refusal]:
    """Returns the nodes that PyTorch has to run so that the rest of ``segment`` can be compiled: one at least."""
    calls = [node for node in segment.nodes if node.target is not operator.getitem]
    named = {node: Refusal(error.code, text) for node in calls if (text := _naming(error, node)) is not None}
    return named or _refused_alone(calls, settings) or dict.fromkeys(calls, Refusal(error.code, error.message))


def report(refused: Mapping[fx.Node, Refusal]) -> None:
    """Writes one line for each op and place to the log."""
    for text in dict.fromkeys(
        f"PyTorch runs {describe(node)} [{refusal.code}]: {refusal.reason}"
        for node, refusal in refused.items()
        if refusal.code
    ):
        logger.warning(text)


def report_sizes(error: LowerkitError, nodes: Sequence[fx.Node]) -> None:
    """Writes one line to the log for a call whose sizes a program does not hold for."""
    reason = "; ".join(error.details) or error.message
    logger.warning("PyTorch runs %d ops, first %s [%s]: %s", len(nodes), describe(nodes[0]), error.code, reason)


def report_break(graph: fx.GraphModule) -> None:
    """Writes one line to the log where TorchDynamo ended ``graph`` at something that PyTorch has to run."""
    ended: Any = getattr(graph, "compile_subgraph_reason", None)
    if ended is None or not ended.graph_break:
        return
    logger.warning("PyTorch runs what is at %s [LK2001]: %s", _place_of(ended.user_stack), _break_text(ended.reason))


def _place_of(stack: Sequence[FrameSummary]) -> str:
    """Returns the innermost line of the user's own code, and what it called where that is in an installed package."""
    users = [number for number, frame in enumerate(stack) if is_users_file(frame.filename)]
    inner = stack[users[-1] if users else -1]
    own = [number for number in users if is_own_code(stack[number].filename)]
    if not own or own[-1] == users[-1]:
        return f"{inner.filename}:{inner.lineno}"
    caller, called = stack[own[-1] : own[-1] + 2]
    inside = inside_packages(inner.filename) or inner.filename
    return f"{caller.filename}:{caller.lineno}, in {called.name} at {inside}:{inner.lineno}"


def _break_text(reason: str) -> str:
    """Returns TorchDynamo's reason in a line: its headline and its explanation, without hints and traces."""
    headline, *rest = reason.splitlines() or [""]
    if headline.startswith("generic_jump"):
        return "a branch or loop depends on the values of a tensor"
    said = (line.strip().removeprefix("Explanation: ") for line in rest if line.strip().startswith("Explanation: "))
    return ": ".join([headline, *said])


def refusal_error(refused: Mapping[fx.Node, Refusal]) -> UnsupportedError:
    """Returns the error for nodes that lowerkit is not even asked for."""
    details = [f"{describe(node)}: {refusal.reason}" for node, refusal in refused.items()]
    parts = "1 op of the graph is" if len(details) == 1 else f"{len(details)} ops of the graph are"
    return UnsupportedError(
        "LK4001",
        f"{parts} not supported",
        details=list(dict.fromkeys(details)),
        hint="without fullgraph=True, and with on_refusal='break', PyTorch runs them",
    )


def _naming(error: LowerkitError, node: fx.Node) -> str | None:
    """Returns what an error says of a node; None where it does not name its op, or another line of it."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    op = re.escape(str(node.target).rpartition(".")[0])
    place = users_line(node.meta.get("stack_trace"))
    for text in [*error.details, *([error.op] if error.op else [])]:
        at = error.location or text
        if re.search(rf"\b{op}\b", text) and (place in at or " at " not in at):
            return error.message if text == error.op else _reason(text, node)
    return None


def _reason(text: str, node: fx.Node) -> str:
    """What a refusal says of a node beside its op and line; of an op that nothing lowers that are its operands."""
    said = re.sub(r"^\w+: ", "", text).removesuffix(f" at {place_of(node)}").partition(" at unknown")[0]
    op = str(node.target).rpartition(".")[0]
    return f"it cannot be lowered for {said.removeprefix(op).strip()}" if said.startswith(f"{op} (") else said


def _refused_alone(calls: list[fx.Node], settings: Settings) -> dict[fx.Node, Refusal]:
    found: dict[fx.Node, Refusal] = {}
    answers: dict[str, LowerkitError | None] = {}
    for node in calls:
        kind = _kind(node)
        if kind not in answers:
            answers[kind] = _problem_alone(node, settings)
        problem = answers[kind]
        if problem is not None:
            found[node] = Refusal(problem.code, _reason([*problem.details, problem.message][0], node))
    return found


def _problem_alone(node: fx.Node, settings: Settings) -> LowerkitError | None:
    alone = [node, *(user for user in node.users if user.target is operator.getitem)]
    try:
        exported = export_segment(Segment.of(alone, set(), set()), {}, {}).program
        plan_program(capture_exported(exported, source=str(node.target)), settings.compile_options())
    except LowerkitError as error:
        return error
    return None


def _kind(node: fx.Node) -> str:
    """What tells nodes apart that may be answered differently: the op, its settings, types and shapes."""

    def of(argument: Any) -> Any:
        values = pytree.tree_leaves(argument.meta.get("val") if isinstance(argument, fx.Node) else argument)
        return [
            f"{value.dtype}{[str(expression_of(extent)) for extent in value.shape]}"
            if isinstance(value, torch.Tensor)
            else str(value)
            for value in values
        ]

    return f"{node.target}{[of(leaf) for leaf in pytree.tree_leaves((node.args, node.kwargs))]}"
