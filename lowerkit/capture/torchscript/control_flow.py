"""TorchScript's ``prim::If`` and ``prim::Loop``: taken and written out where their course is known, else by data.

Where data decides, branches and loops become ``cond`` and ``while_loop`` of torch. Their bodies take tensors only:
every tensor that a block reads from outside, also inside lists and dicts, and the attributes that it reads. A loop is
written out as long as numbers decide, and goes on as ``while_loop`` from the turn where data does.
"""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.utils import materialize_as_graph
from torch._higher_order_ops.while_loop import while_loop_op
from torch.utils import _pytree as pytree

from lowerkit.capture.torchscript.loop_bounds import MOST_TURNS, LoopBounds, nodes_of
from lowerkit.capture.torchscript.values import Known, is_alias, lifted, number
from lowerkit.errors import UnsupportedError

if TYPE_CHECKING:
    from lowerkit.capture.torchscript.interpreter import Environment, Interpreter

_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64}


def run_branches(interpreter: Interpreter, node: torch._C.Node, predicate: Any, environment: Environment) -> list[Any]:
    """Runs the branch that is known to be taken, else both as ``cond``."""
    then, otherwise = node.blocks()
    predicate = number(predicate, None)
    if not isinstance(predicate, torch.Tensor):
        return interpreter.run_block(then if predicate else otherwise, environment)
    kinds = [str(value.type()) for value in node.outputs()]
    outer = _Outer(interpreter, node, [then, otherwise], environment)
    missing: list[Any] = [None] * len(kinds)

    def body(block: Any) -> Callable[..., Any]:
        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found, after = outer.run(block, tensors, [])
            results = [
                _placeholder(blank) if value is None else _no_alias(value, tensors)
                for value, blank in zip(
                    (_tensor(*pair) for pair in zip(found, kinds, strict=True)), missing, strict=True
                )
            ]
            return (*results, *after)

        return run

    if _leaves_values_out([then, otherwise]):
        # One branch leaves values uninitialized, of a shape that the other knows.
        for block in (then, otherwise):
            _note_shapes(outer, block, kinds, missing)
    if not kinds and not outer.shared:
        raise _refused(node, "gives and changes nothing: it may raise an exception")
    found = list(cond_op(_decision(predicate), body(then), body(otherwise), tuple(outer.tensors)))
    outer.write_back(found[len(kinds) :])
    return found[: len(kinds)]


def run_loop(
    interpreter: Interpreter, node: torch._C.Node, inputs: Sequence[Any], environment: Environment
) -> list[Any]:
    """Runs ``block(turn, *carried) -> (going, *carried)`` at most ``turns`` times, as long as it says so."""
    turns, going, *carried = inputs
    turns, going = number(turns, None), number(going, None)
    (block,) = node.blocks()
    turn_name, *names = [value.debugName() for value in block.inputs()]
    reads = list(nodes_of(block, "prim::GetAttr")) if any(nodes_of(block, "prim::SetAttr")) else []
    bounds = LoopBounds(node, turns, going, interpreter.operations)
    kinds = [str(value.type()) for value in node.outputs()]
    turn, tried = 0, False

    def by_data() -> list[Any]:
        return _loop_by_data(interpreter, node, (turn, turns), (going, carried), environment)

    while not isinstance(going, torch.Tensor) and not isinstance(turns, torch.Tensor) and turn < MOST_TURNS:
        if turn >= turns or not going:
            return carried
        if bounds.are_passed(turn, interpreter.operations) and not tried and None not in map(_tensor, carried, kinds):
            tried = True
            with suppress(Exception):  # what it carries changes its shape, or decides as a number
                return by_data()
        environment.update(zip([turn_name, *names], [turn, *carried], strict=True))
        for read in reads:
            environment.pop(read.output().debugName(), None)  # of the turn before
        going, *carried = interpreter.run_block(block, environment)
        going, turn = number(going, None), turn + 1
    return by_data()


def _loop_by_data(
    interpreter: Interpreter,
    node: torch._C.Node,
    counted: tuple[int, Any],
    state: tuple[Any, list[Any]],
    environment: Environment,
) -> list[Any]:
    """Goes on with a loop as ``while_loop``: from a turn, of at most so many, with a decision and carried values."""
    (turn, turns), (going, carried) = counted, state
    (block,) = node.blocks()
    turn_name, *names = [value.debugName() for value in block.inputs()]
    kinds = [str(value.type()) for value in node.outputs()]
    start = [value for value in map(_tensor, carried, kinds) if value is not None]
    if len(start) != len(kinds):
        raise _refused(node, f"carries {', '.join(kinds)}")
    outer = _Outer(interpreter, node, [block], environment)
    own, others = len(kinds), len(outer.tensors)
    changed: dict[int, bool] = {}

    def unfinished(turn: torch.Tensor, going: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return (turn < (rest[-1] if isinstance(turns, torch.Tensor) else turns)) & going

    def next_turn(turn: torch.Tensor, going: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [value.clone() for value in rest[:own]] if outer.in_place else list(rest[:own])
        bound = list(zip([turn_name, *names], [turn, *values], strict=True))
        (decision, *found), after = outer.run(block, rest[own : own + others], bound)
        results = [_tensor(*pair) for pair in zip(found, kinds, strict=True)]
        for place, (value, result) in enumerate(zip(values, results, strict=True)):
            if outer.in_place and value._version:
                changed[place] = result is value
        # A result that is an operand would be an alias of it, which torch refuses.
        return (turn + 1, _decision(decision).clone(), *(lifted(value).clone() for value in results), *after)

    first = [torch.full((), turn, dtype=torch.int64), _decision(going), *(value.clone() for value in start)]
    limits = [turns.reshape(())] if isinstance(turns, torch.Tensor) else []
    carried_along, read = (outer.tensors, []) if outer.in_place else ([], outer.tensors)
    # torch declares a tuple of one item
    operands: Any = (*first, *(value.clone() for value in carried_along))
    every: Any = while_loop_op(unfinished, next_turn, operands, (*read, *limits))
    results = list(every)[2 : 2 + own]
    if not all(changed.values()):
        raise _refused(node, "changes a tensor in place that another one takes the place of")
    outer.write_back(list(every)[2 + own :])
    for place in changed:
        if isinstance(carried[place], torch.Tensor):
            carried[place].copy_(results[place])
            results[place] = carried[place]
    return results


class _Outer:
    """What blocks read from outside: names, values, and the tensors in them, which become operands.

    Attributes:
        tensors: the operands, each once.
        in_place: whether the blocks change tensors in place. They then work on copies and give all of them back, so
            that what was changed can be written where it was.
    """

    def __init__(
        self, interpreter: Interpreter, node: torch._C.Node, blocks: Sequence[Any], environment: Environment
    ) -> None:
        self.interpreter = interpreter
        self.node = node
        for block in blocks:
            for read in nodes_of(block, "prim::GetAttr"):
                if read.input().debugName() in environment:
                    interpreter.run_node(read, environment)
        self.names = list(dict.fromkeys(name for block in blocks for name in _names(block) if name in environment))
        self.leaves, self.structure = pytree.tree_flatten([environment[name] for name in self.names])
        found = {id(leaf): leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)}
        self.tensors: list[torch.Tensor] = list(found.values())
        self.in_place = any(_writes(inner) for block in blocks for inner in nodes_of(block))
        self.shared = self.tensors if self.in_place else []
        self.changed: set[int] = set()

    def run(
        self, block: Any, tensors: Sequence[torch.Tensor], bound: Sequence[tuple[str, Any]]
    ) -> tuple[list[Any], list[torch.Tensor]]:
        """Runs a block with ``tensors`` in the place of those outside; returns its outputs, and these if in place.

        Raises:
            UnsupportedError: LK4001, it changes a list or a dict of the outside, or an attribute.
        """
        given = [tensor.clone() for tensor in tensors] if self.in_place else list(tensors)
        places = {id(tensor): place for place, tensor in enumerate(self.tensors)}
        leaves = [given[places[id(leaf)]] if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        values = pytree.tree_unflatten(leaves, self.structure)
        assigned = dict(self.interpreter.assigned)
        found = self.interpreter.run_block(block, {**dict(zip(self.names, values, strict=True)), **dict(bound)})
        after, structure = pytree.tree_flatten(values)
        unchanged = structure == self.structure and all(one is other for one, other in zip(after, leaves, strict=True))
        if not unchanged or self.interpreter.assigned != assigned:
            raise _refused(self.node, "changes a list, a dict or an attribute")
        if not self.in_place:
            return found, []
        self.changed |= {place for place, tensor in enumerate(given) if tensor._version}
        return found, [tensor.clone() for tensor in given]

    def write_back(self, values: Sequence[torch.Tensor]) -> None:
        """Writes what the blocks changed in place to where it was."""
        for place in sorted(self.changed):
            target = self.tensors[place]
            if any(other is not target and is_alias(target, other) for other in self.tensors):
                raise _refused(self.node, "changes a tensor in place and reads another view of it")
            target.copy_(values[place])


def _writes(node: torch._C.Node) -> bool:
    """Whether a node changes a tensor in place."""
    schema = node.schema()
    return schema != "(no schema)" and "Tensor(" in schema and torch._C.parse_schema(schema).is_mutable


def _no_alias(value: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result that is an operand would be an alias of it, which torch refuses."""
    return value.clone() if any(is_alias(value, operand) for operand in operands) else value


def _names(block: Any) -> Iterator[str]:
    """Names that a block reads, and those of the attributes that it reads, which may be known already."""
    for node in block.nodes():
        yield from (value.debugName() for value in node.inputs())
        if node.kind() == "prim::GetAttr":
            yield node.output().debugName()
        for inner in node.blocks():
            yield from _names(inner)
    yield from (value.debugName() for value in block.outputs())


def _leaves_values_out(blocks: Sequence[Any]) -> bool:
    return any(value.node().kind() == "prim::Uninitialized" for block in blocks for value in block.outputs())


def _note_shapes(outer: _Outer, block: Any, kinds: Sequence[str], missing: list[Any]) -> None:
    """Runs a branch beside the trace and notes what its results look like."""
    places: list[int] = []

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = [_tensor(*pair) for pair in zip(outer.run(block, tensors, [])[0], kinds, strict=True)]
        places[:] = [place for place, value in enumerate(found) if value is not None]
        return tuple(value for value in found if value is not None)

    graph = materialize_as_graph(run, tuple(outer.tensors))
    results: Any = next(iter(reversed(graph.graph.nodes))).args[0]
    for place, result in zip(places, results, strict=True):
        missing[place] = missing[place] if missing[place] is not None else result.meta["val"]


def _placeholder(like: Any) -> torch.Tensor:
    if like is None:
        raise UnsupportedError("LK4001", "neither branch gives a value that both leave")
    return torch.zeros(like.shape, dtype=like.dtype)


def _tensor(value: Any, kind: str) -> torch.Tensor | None:
    """A value as a tensor; a number has the type by which TorchScript knows it. None where it is neither."""
    if isinstance(value, Known):
        value = value.lifted()
    if isinstance(value, torch.Tensor):
        return value
    is_number = isinstance(value, (bool, int, float))
    return torch.full((), value, dtype=_DTYPES.get(kind)) if is_number else None


def _decision(value: Any) -> torch.Tensor:
    """A bool of rank 0: TorchScript takes any tensor of one element for one."""
    value = number(value, None)
    if not isinstance(value, torch.Tensor):
        return torch.full((), bool(value))
    return value.reshape(()) if value.dtype == torch.bool else (value != 0).reshape(())


def _refused(node: torch._C.Node, what: str) -> UnsupportedError:
    kind = "loop" if node.kind() == "prim::Loop" else "branch"
    return UnsupportedError(
        "LK4001",
        f"a {kind} of the TorchScript program whose course depends on data {what}",
        hint="it can carry tensors and numbers only; a list of known length is written out where numbers decide",
    )
