"""The conditions under which an exported program is right: found where torch keeps them, given to the signature.

``torch.export`` takes the branches that the example takes, and notes for each on which condition on sizes it rests.

Sources
    shape environment   what tracing noted, in memory, with the line; of tracing again for the decompositions too
    text                what a ``.pt2`` keeps of it (:mod:`lowerkit.capture.torch_export.pt2.expression_parser`)
    assertions          ``aten._assert_scalar`` in the graph: ``torch._check`` where its outcome was deferred
    operators           that need elements, extents that agree, or dims that stay (:mod:`needs`)
    equal dims, fixed dims and ranges are in the shapes and dims of the signature themselves
"""

# The shape environment is part of what torch keeps private; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.export import ExportedProgram, exported_program
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.node_schemas import operator_name
from lowerkit.capture.torch_export.pt2.expression_tree import Source
from lowerkit.capture.torch_export.pt2.sympy_builder import guard_to_sympy
from lowerkit.capture.torch_export.symbolic.dims import SymbolNames
from lowerkit.capture.torch_export.symbolic.needs import extents_of, needs_of
from lowerkit.errors import UnsupportedError
from lowerkit.program.locations import is_users_file, users_line
from lowerkit.runtimes.conditions import Condition
from lowerkit.runtimes.expression_bounds import decided, ranges_of
from lowerkit.runtimes.manifest import Guard

Path = tuple[str | int, ...]
"""How an input is reached in the arguments: ``("x",)``, ``("cache", 0, "key")``."""

_ASSERT = "aten._assert_scalar.default"
_LAYOUT_FUNCTIONS = frozenset(
    {
        "_collapse_view_helper",
        "_reshape_view_helper",
        "_reshape_view_helper_core_alg",
        "_compute_stride",
        "are_strides_like_channels_last",
        "check_contiguous_sizes_strides",
        "compute_elementwise_output_logical_to_physical_perm",
        "is_channels_last_contiguous",
        "is_contiguous",
        "is_non_overlapping_and_dense",
        "make_contiguous_strides_for",
        "should_swap",
    }
)
"""Functions of torch that ask of sizes how a tensor may lie in memory, which means nothing to its values."""


@dataclass(frozen=True)
class Noted:
    """One condition: sympy's, and ``file:line`` of the user where it is known.

    ``own`` says that it was noted while operators were decomposed: it is no condition of the program itself.
    With ``least`` the expression is an extent, and the condition that it is no less. ``operator`` names the operator
    whose contract it is.
    """

    expression: Any
    location: str = ""
    own: bool = False
    least: int | None = None
    operator: str = ""


@dataclass
class NotedGuards:
    """The conditions of one exported program.

    Attributes:
        noted: what they are, each once.
        unchecked: assertions on values, which nothing checks at a call: their lines.
    """

    noted: list[Noted] = field(default_factory=list[Noted])
    unchecked: list[str] = field(default_factory=list[str])
    _environment: Any = None
    _seen: int = 0
    _extents: set[Any] = field(default_factory=set[Any])

    @classmethod
    def of(cls, exported: ExportedProgram) -> NotedGuards:
        """Collects the conditions of ``exported``.

        Raises:
            UnsupportedError: LK4002, a condition that it keeps as text cannot be read.
        """
        found = cls(_environment=_shape_environment(exported.graph))
        found._forget_ranges_of_expressions()
        found._extents = _extents_of(exported.graph)
        entries = found._entries()
        texts = list(getattr(exported, "_guards_code", None) or [])
        # What came from a file has its conditions as text; its environment knows what reading it has asked.
        loaded = not {*texts} <= {*_texts_of_environment(exported)}
        found.noted = _of_texts(exported, texts) if loaded else []
        found.noted += [
            Noted(entry.expr, _location(entry), own=loaded) for entry in entries if not (loaded and _is_layout(entry))
        ]
        found._seen = len(entries)
        found._add_assertions(exported.graph)
        found._add_needed(exported.graph)
        return found

    def add_of_decompositions(self, graph: fx.Graph) -> None:
        """Adds what was noted since, while operators were decomposed; not what is about the layout in memory.

        Args:
            graph: what they were decomposed to.
        """
        self._extents |= _extents_of(graph)
        self._add_needed(graph)
        self.noted += [
            Noted(entry.expr, _location(entry), own=True)
            for entry in self._entries()[self._seen :]
            if not _is_layout(entry)
        ]

    def guards(self, symbols: SymbolNames) -> list[Guard]:
        """Returns them as guards of the signature, without those that hold for all sizes.

        Raises:
            UnsupportedError: LK4002, a condition is none on the inputs' dims, or holds for no sizes.
        """
        found: dict[Condition, Guard] = {}
        ranges, own_ranges = ranges_of(symbols.dims), ranges_of(symbols.dims, at_least=2)
        for entry in self.noted:
            expression = self._replaced(entry.expression)
            if entry.least is None:
                condition = symbols.condition(expression, entry.location)
            else:
                condition = symbols.at_least(expression, entry.least, entry.location)
            if (
                entry.own
                and not isinstance(condition, bool)
                and (self._asks_for_one(entry.expression, condition) or decided(condition, own_ranges))
            ):
                continue
            if not isinstance(condition, bool):
                outcome = decided(condition, ranges)
                condition = condition if outcome is None else outcome
            if condition is False:
                asked = f"{entry.expression}" + ("" if entry.least is None else f" >= {entry.least}")
                raise UnsupportedError(
                    "LK4002",
                    f"the model holds under the condition {asked}, which no sizes fulfil",
                    op=entry.operator or None,
                    location=entry.location or None,
                    hint="export it again with sizes that differ from each other",
                )
            if condition is not True and condition not in found:
                found[condition] = Guard(condition, entry.location, entry.operator)
        return list(found.values())

    def remarks(self) -> list[str]:
        """Returns what the user should know of assertions that nothing checks."""
        if not self.unchecked:
            return []
        return [
            f"{len(self.unchecked)} assertions on the values of tensors are not checked by the compiled model: "
            + ", ".join(self.unchecked[:4])
        ]

    def _forget_ranges_of_expressions(self) -> None:
        """torch keeps ranges of a loaded program's derived dims (``2*n``) among those of symbols, and fails on them."""
        ranges: dict[Any, Any] = getattr(self._environment, "var_to_range", {})
        for symbol in [symbol for symbol in ranges if not symbol.is_Symbol]:
            del ranges[symbol]

    def _entries(self) -> Sequence[Any]:
        return [] if self._environment is None else list(self._environment.guards)

    def _replaced(self, expression: Any) -> Any:
        """Symbols that were found equal, or fixed, are what they were replaced by."""
        return expression if self._environment is None else self._environment.replace(expression)

    def _add_assertions(self, graph: fx.Graph) -> None:
        for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
            if str(node.target) not in (_ASSERT, "aten._assert_async.msg"):
                continue
            line = users_line(node.meta.get("stack_trace"))
            value = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else node.args[0]
            expression = value.node.expr if isinstance(value, (torch.SymBool, torch.SymInt)) else None
            if isinstance(value, (bool, int)):
                continue  # decided when it was exported
            free = set[Any]() if expression is None else expression.free_symbols
            if expression is None or any(self._is_of_data(symbol) for symbol in free):
                self.unchecked.append(f"{node.name}{f' at {line}' if line else ''}")
            else:
                self.noted.append(Noted(expression, line))

    def _asks_for_one(self, relation: Any, condition: Condition) -> bool:
        """Whether a relation says no more than that an extent is neither 0 nor 1.

        torch decides such questions as if no symbol were 0 or 1, and asks them of every extent to find how memory may
        lie and what is broadcast; what an operator gives is the same for those sizes. Of a number that is no extent,
        a scale for one, an operator asks for its own sake.
        """
        match condition:
            case ("ne", _, 0 | 1) | ("ne", 0 | 1, _) | ("lt", 0 | 1, _) | ("le", 0 | 1 | 2, _):
                return any(side.is_Symbol or side in self._extents for side in relation.args)
            case _:
                return False

    def _add_needed(self, graph: fx.Graph) -> None:
        known = {(entry.expression, entry.least) for entry in self.noted}
        for node, need in needs_of(graph):
            relation = {"equal to": sympy.Eq, "unequal to": sympy.Ne}.get(need.relation)
            expression = need.extent if relation is None else relation(need.extent, need.other)
            if expression == sympy.true:
                continue
            if relation is not None and expression == sympy.false:
                expression = relation(need.extent, need.other, evaluate=False)
            least = need.other if relation is None else None
            if (expression, least) not in known and not any(map(self._is_of_data, expression.free_symbols)):
                known.add((expression, least))
                line = users_line(node.meta.get("stack_trace"))
                self.noted.append(Noted(expression, line, least=least, operator=operator_name(node)))

    def _is_of_data(self, symbol: Any) -> bool:
        return bool(self._environment is not None and self._environment.is_unbacked_symint(symbol))


def _extents_of(graph: fx.Graph) -> set[Any]:
    nodes = [node for inner in body_graphs(graph) for node in inner.nodes]
    return {extent for node in nodes for extent in extents_of(node) or [] if not extent.is_Integer}


def _shape_environment(graph: fx.Graph) -> Any:
    """Returns what torch knows of the symbols of a graph; None where all its inputs have fixed shapes."""
    for node in graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


def _location(entry: Any) -> str:
    frame = getattr(entry.sloc, "framework_loc", None)
    file, line = getattr(frame, "filename", None), getattr(frame, "lineno", None)
    return f"{file}:{line}" if file is not None and is_users_file(file) else ""


def _is_layout(entry: Any) -> bool:
    return getattr(getattr(entry.sloc, "framework_loc", None), "name", "") in _LAYOUT_FUNCTIONS


def _texts_of_environment(exported: ExportedProgram) -> Sequence[str]:
    write: Any = getattr(exported_program, "_convert_guards_to_code", None)
    return [] if write is None else write(exported.graph_module)


def _of_texts(exported: ExportedProgram, texts: Sequence[str]) -> list[Noted]:
    shapes = _shapes_by_path(exported)

    def size(source: Source) -> Any:
        if source.measure != "size":
            raise LookupError
        extent = shapes[source.path][source.axis]
        return extent if isinstance(extent, int) else extent.node.expr

    try:
        return [Noted(guard_to_sympy(text, size)) for text in texts]
    except ValueError as error:
        raise UnsupportedError(
            "LK4002",
            f"the program holds under a condition that cannot be checked at a call: {error}",
            hint="export the model with fixed sizes where it decides by them",
        ) from None


def _shapes_by_path(exported: ExportedProgram) -> Mapping[Path, Sequence[Any]]:
    """Shapes of the inputs by each path by which torch's texts may call them."""
    values = {node.name: node.meta.get("val") for node in exported.graph.find_nodes(op="placeholder")}
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    found: dict[Path, Sequence[Any]] = {}

    def add(path: Path, name: str) -> None:
        value = values.get(name)
        if isinstance(value, torch.Tensor):
            found.setdefault(path, value.shape)
            varied = re.fullmatch(r"(.+)_([0-9]+)", str(path[0]))  # forward(*args): `args_0` is `args[0]`
            if varied is not None:
                found.setdefault((varied[1], int(varied[2]), *path[1:]), value.shape)

    for number, name in enumerate(names):
        add(("flat_args", number), name)
        add((name,), name)
    spec = exported.call_spec.in_spec
    if spec is None or spec.num_leaves != len(names):
        return found
    called = exported.module_call_graph[0].signature
    positional = (called.forward_arg_names if called is not None else None) or []
    leaves = pytree.tree_leaves_with_path(pytree.tree_unflatten(names, spec))
    for keys, name in leaves:
        plain = [_key(key) for key in keys]
        if plain[0] == 0 and isinstance(plain[1], int):
            if plain[1] < len(positional):
                add((positional[plain[1]], *plain[2:]), name)
        else:
            add(tuple(plain[1:]), name)
    return found


def _key(key: Any) -> str | int:
    return next((getattr(key, name) for name in ("idx", "key", "name") if hasattr(key, name)), str(key))
