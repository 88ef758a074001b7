"""Makes an exported graph ready for import: functional, of ops that a rule of a pass takes, constants folded.

Steps
    functional     in-place ops and views of them become pure (:mod:`functionalize`, or
                   ``run_decompositions`` with an empty table); whole ops such as ``linear`` stay.
    checks         assertions on shapes and dtypes go: the signature's ranges state them.
    constants      what depends on no input and no parameter (position ids, causal masks, rotary tables) is computed
                   once, by PyTorch itself, so bit for bit as eager does. Bounded in size: bytes read at most
                   :data:`FOLD_READ_BYTES` per tensor, written :data:`FOLD_WRITE_BYTES`.
    names          ops that no rule of a pass takes are decomposed
                   (:mod:`lowerkit.capture.torch_export.decompositions.table`), and the steps repeated.
"""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import node as fx_node
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.decompositions import masked_writes, windows
from lowerkit.capture.torch_export.decompositions.linear_algebra.lu_cholesky import CHECKED
from lowerkit.capture.torch_export.decompositions.own_table import OWN_DECOMPOSITIONS
from lowerkit.capture.torch_export.decompositions.special_functions import integer_powers
from lowerkit.capture.torch_export.decompositions.statistics import WITH_STATISTICS
from lowerkit.capture.torch_export.decompositions.symbolic_sizes import OF_SIZES, is_symbolic
from lowerkit.capture.torch_export.decompositions.table import decomposition_of, is_spelled_out, left_to
from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES, all_in_range
from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.graph.decomposing import run_decompositions
from lowerkit.capture.torch_export.graph.functionalize import callable_of, pure_form, rewritten
from lowerkit.capture.torch_export.graph.preserved_strides import with_known_layouts
from lowerkit.capture.torch_export.graph.subgraph_locations import watched_lines
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.capture.torch_export.symbolic.needs import keep_open_dims
from lowerkit.program.dtypes import torch_name_of
from lowerkit.program.functional_program import FunctionalProgram

FOLD_READ_BYTES = 1 << 20
FOLD_WRITE_BYTES = 4 << 20

_CHECKS = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
_VECTORS = {"aten._linalg_svd.default": (1, 2), "aten._linalg_eigh.default": (0, 2)}
"""Which result the values are, and which argument says whether vectors are wanted."""
_TAKES = integer_powers.TAKES | masked_writes.TAKES | windows.TAKES
"""Of ops whose functions leave common arguments alone: whether they take them."""
_WITH_MORE = windows.WITH_PLACES | WITH_STATISTICS
"""What passes take as long as its first result alone is read."""


def prepare(exported: ExportedProgram) -> FunctionalProgram:
    """Returns a program as the module docstring says; ``exported`` is not changed."""
    program = rewritten(exported)
    if program is not None:
        _drop_checks(program.graph)
        keep_open_dims(program.graph)
        _fold_constants(program)
        if not _missing_decompositions(program.graph):
            return program
    table = _missing_at_first(exported)
    with watched_lines() as lines, left_to(table):
        traced = run_decompositions(_with_own_constants(with_known_layouts(exported)), table)
        lines.restore(traced.graph_module)
    tried = set(table)
    while True:
        program = FunctionalProgram.of(traced)
        _drop_checks(program.graph)
        keep_open_dims(program.graph)
        _drop_vectors(program.graph)
        # Folded constants have data, so a graph without any cannot be traced again beside them.
        without_data = _is_without_data(program)
        if not without_data:
            _fold_constants(program)
        table = _missing_decompositions(program.graph)
        if table.keys() <= tried:
            if without_data:
                _fold_constants(program)
            return program
        tried |= table.keys()
        with watched_lines() as lines, left_to(table):
            traced = run_decompositions(traced, table)
            lines.restore(traced.graph_module)


def _with_own_constants(exported: ExportedProgram) -> ExportedProgram:
    """A program traced again shares the constants of the one it was made of; the user's own get no new ones.

    Its conditions on sizes are known. Tracing would run them as Python, whose ``min`` asks which of two sizes is less.
    """
    own = copy.copy(exported)
    own._constants = dict(exported.constants)
    own._guards_code = []
    return own


def _is_without_data(program: FunctionalProgram) -> bool:
    tensors = [value for value in program.state_dict.values() if isinstance(value, torch.Tensor)]
    return any(value.device.type == "meta" for value in tensors)


def _missing_decompositions(graph: fx.Graph) -> dict[Any, Callable[..., Any]]:
    calls = [node for inner in body_graphs(graph) for node in inner.nodes if node.op == "call_function"]
    table: dict[Any, Callable[..., Any]] = {}
    for target in {node.target for node in calls if _is_taken(node)}:
        if isinstance(target, torch._ops.OpOverload) and is_spelled_out(target):
            decomposition = decomposition_of(target)
            if decomposition is not None:
                table[target] = decomposition
    for node in calls:
        if node.target in OF_SIZES and _has_symbolic_size(node):
            table[node.target] = OF_SIZES[node.target]
        if node.target in _WITH_MORE and any(user.args[1] != 0 for user in node.users):
            table[node.target] = _WITH_MORE[node.target]
    # What PyTorch writes a missing op out of may call these, which it would write out with side effects.
    return table | {target: OWN_DECOMPOSITIONS[target] for target in CHECKED} if table else table


def _is_taken(node: fx.Node) -> bool:
    """Whether the decomposition of a node, if there is one, takes its arguments."""
    takes = _TAKES.get(node.target)
    return takes is None or takes(*fx_node.map_arg(node.args, lambda source: source.meta["val"]))


def _missing_at_first(exported: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """What can be decomposed in the very round that makes a program functional: each round is as long as the export.

    Not what computes constants, which are folded before, nor what is asked for less once dead results are gone.
    """
    missing = _missing_decompositions(exported.graph)
    signature = exported.graph_signature
    varying = {*signature.user_inputs, *signature.parameters, *signature.buffers_to_mutate.values()}
    later: set[Any] = set()
    for node in exported.graph.nodes:
        if node.name in varying or any(source.name in varying for source in node.all_input_nodes):
            varying.add(node.name)
        else:
            later.add(node.target)
    wanted = {target for target in missing if target not in later and str(target) not in _VECTORS}
    # An op in place becomes a pure one, which this very round may decompose.
    pure = [pure_form(target) for target in wanted if _is_mutating(target)]
    wanted |= {target for target in pure if target is not None and is_spelled_out(target)}
    known = {target: missing.get(target) or decomposition_of(target) for target in wanted if not _is_mutating(target)}
    return {target: decomposition for target, decomposition in known.items() if decomposition is not None}


def _has_symbolic_size(node: fx.Node) -> bool:
    values = [leaf for source in (*node.all_input_nodes, node) for leaf in pytree.tree_leaves(source.meta.get("val"))]
    return any(is_symbolic(value.shape) for value in values if isinstance(value, torch.Tensor))


def _drop_vectors(graph: fx.Graph) -> None:
    """Asks singular values and eigenvalues alone where nothing reads the vectors: those are not unique."""
    for node in [node for inner in body_graphs(graph) for node in inner.nodes]:
        place, argument = _VECTORS.get(str(node.target), (0, 0))
        if argument and all(user.target is operator.getitem and user.args[1] == place for user in node.users):
            defaults = [entry.default_value for entry in node.target._schema.arguments[: argument + 1]]
            given = [*node.args, *defaults[len(node.args) :]]
            node.args = (*given[:argument], False)


def _drop_checks(program_graph: fx.Graph) -> None:
    _write_known_sizes(program_graph)
    nodes = [node for graph in body_graphs(program_graph) for node in graph.nodes]
    for node in reversed(nodes):
        if node.op == "call_function" and (str(node.target) in _CHECKS or (not node.users and not node.is_impure())):
            node.graph.erase_node(node)


def _write_known_sizes(program_graph: fx.Graph) -> None:
    """Puts numbers in the place of sizes that were symbols when they were read, and that the model fixes."""
    for node in [node for graph in body_graphs(program_graph) for node in graph.nodes]:
        size = node.meta.get("val")
        if node.op == "call_function" and isinstance(size, torch.SymInt) and is_static(size):
            known = {node: int(size)}
            # Control flow passes sizes on to its bodies by node.
            bodies = torch._ops.HigherOrderOperator
            for user in [u for u in node.users if u.op == "call_function" and not isinstance(u.target, bodies)]:
                user.args = fx_node.map_arg(user.args, lambda source, known=known: known.get(source, source))
                user.kwargs = fx_node.map_arg(user.kwargs, lambda source, known=known: known.get(source, source))


def _fold_constants(program: FunctionalProgram) -> None:
    """Evaluates what depends on constants and unchanged buffers only; results that others use become constants."""
    graph, signature = program.graph, program.graph_signature
    values: dict[fx.Node, Any] = dict(_readable_constants(program))
    folded: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "call_function" and _has_no_elements(node):
            value = node.meta["val"]
            values[node] = torch.empty([int(extent) for extent in value.shape], dtype=value.dtype)
            folded.append(node)
        elif node.op == "call_function" and _is_foldable(node, values):
            named = fx_node.map_arg(node.kwargs, values.get)
            if named.get("device") == torch.device("meta"):  # a model without data still has its constants
                named = {**named, "device": torch.device("cpu")}
            value = callable_of(node.target)(*fx_node.map_arg(node.args, values.get), **named)
            if all(_is_small(leaf, FOLD_WRITE_BYTES) for leaf in pytree.tree_leaves(value)):
                values[node] = value
                folded.append(node)
    done = set(folded)
    first = next((node for node in graph.nodes if node.op == "placeholder"), next(iter(graph.nodes)))
    new_specs: list[InputSpec] = []
    for node in reversed(folded):
        outside = [user for user in node.users if user not in done]
        if outside and isinstance(values[node], torch.Tensor):
            name = program.add_constant(f"folded_{node.name}", values[node])
            with graph.inserting_before(first):
                constant = graph.placeholder(name)
            constant.meta = dict(node.meta)
            for user in outside:
                user.replace_input_with(node, constant)
            for spec in signature.output_specs:  # an output is known by the name of its node
                if spec.arg.name == node.name:
                    spec.arg = TensorArgument(constant.name)
            new_specs.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(constant.name), name))
            first = constant
        if not node.users:
            graph.erase_node(node)
    signature.input_specs[:0] = reversed(new_specs)


def _readable_constants(program: FunctionalProgram) -> dict[fx.Node, torch.Tensor]:
    signature = program.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[fx.Node, torch.Tensor] = {}
    for spec in signature.input_specs:
        if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR) or spec.target in mutated:
            continue
        value = program.tensor_of(spec)
        if isinstance(value, torch.Tensor) and _is_small(value, FOLD_READ_BYTES):
            found[nodes[spec.arg.name]] = value
    return found


def _has_no_elements(node: fx.Node) -> bool:
    """Whether a node gives one tensor without elements: such a value needs no computing."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(is_static(extent) for extent in value.shape):
        return False
    return value.numel() == 0 and torch_name_of(value.dtype) is not None and not _is_mutating(node.target)


def _is_mutating(target: Any) -> bool:
    """Whether an op changes its arguments."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_foldable(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        if node.target.namespace == "quantized_decomposed":  # the integers are to be seen, not what they stand for
            return False
        if torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.is_mutable:
            return False
    elif node.target.__module__ != "_operator":
        return False
    if any(source not in values for source in node.all_input_nodes):
        return False
    arguments: Any = fx_node.map_arg(node.args, values.get)
    if node.target is CHECKED_INDICES and not all_in_range(*arguments):
        return False  # it is for the run to say
    leaves = pytree.tree_leaves(node.meta.get("val"))
    # The size is known before anything is computed: a constant of a terabyte is not made.
    return bool(leaves) and all(_is_small(leaf, FOLD_WRITE_BYTES, fake=True) for leaf in leaves)


def _is_small(value: Any, limit: int, *, fake: bool = False) -> bool:
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float, bool)) and not isinstance(value, torch.SymInt)
    if isinstance(value, torch._subclasses.FakeTensor) and not fake:
        return False
    devices = ("cpu", "meta") if fake else ("cpu",)
    if value.device.type not in devices or value.layout != torch.strided or value.is_quantized:
        return False
    return all(is_static(extent) for extent in value.shape) and value.numel() * value.element_size() <= limit
