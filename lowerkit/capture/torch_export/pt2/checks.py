"""What the parts of a ``.pt2`` may say before torch's deserializer sees them.

torch looks functions up by the names that a file gives (any callable below ``torch``), imports the modules that a
tree of arguments names, and writes names into Python that it compiles and runs. So here

* operators are those of :mod:`lowerkit.capture.operator_allowlist`;
* names that become variables are identifiers, and paths of parameters hold no quotes;
* trees of arguments are made of types that this process has registered, and their enumerations are loaded already;
* guards are of the grammar of :mod:`expression_parser`; they are never executed;
* metadata is dropped but for source lines and module paths.
"""

from __future__ import annotations

import enum
import json
import keyword
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from lowerkit.capture.operator_allowlist import is_harmless_target
from lowerkit.capture.torch_export.pt2.expression_parser import parse_symbolic
from lowerkit.capture.torch_export.pt2.schema import Check

MAXIMUM_SYMBOL = 100_000
"""torch counts up to the largest number among symbols that data decides."""
MAXIMUM_PROBLEMS = 16
_DEVICES = {"cpu", "cuda", "hpu", "meta", "mps", "mtia", "npu", "xla", "xpu"}
_KEPT_METADATA = ("stack_trace", "nn_module_stack")
_FACTORIES = {"dict", "float", "int", "list", "set", "str", "tuple", "bool"}
_NAMED = ("TensorArgument", "TokenArgument", "GraphArgument", "CustomObjArgument", "InputToConstantInputSpec")
_SYMBOLIC = ("SymIntArgument", "SymFloatArgument", "SymBoolArgument")
_TABLES = ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "custom_obj_values")
_PATHS = ("parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name", "user_input_name", "fqn")


class ExportedChecks:
    """Looks at the objects of one file while they are decoded; ``problems`` is what it found, in words."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def by_class(self) -> dict[str, Check]:
        """The checks by the name of the class of torch's schema."""
        paths = ["InputToParameterSpec", "InputToBufferSpec", "InputToTensorConstantSpec", "InputToCustomObjSpec"]
        paths += ["BufferMutationSpec", "ParameterMutationSpec", "GradientToParameterSpec", "GradientToUserInputSpec"]
        paths += ["UserInputMutationSpec", "ModuleCallEntry"]
        return {
            **dict.fromkeys(_NAMED, self._named),
            **dict.fromkeys(_SYMBOLIC, self._symbolic),
            **dict.fromkeys(paths, self._path),
            "NamedArgument": self._argument,
            "Argument": self._operator,
            "Node": self._node,
            "Graph": self._graph,
            "Device": self._device,
            "ModuleCallSignature": self._signature,
            "GraphModule": self._module,
            "ExportedProgram": self._program,
        }

    def refuse(self, problem: str) -> None:
        """Notes one problem."""
        if len(self.problems) < MAXIMUM_PROBLEMS and problem not in self.problems:
            self.problems.append(problem)

    def identifiers(self, names: Iterable[str], what: str) -> None:
        """Names that torch writes into Python as variables."""
        for name in names:
            if not name.isidentifier() or keyword.iskeyword(name):
                self.refuse(f"{what} {_shown(name)}: no identifier, and it would become Python code")

    def _named(self, made: Any) -> None:
        self.identifiers([made.name], "the name")

    def _symbolic(self, made: Any) -> None:
        if made.type == "as_name":
            self.identifiers([made.as_name], "the name")

    def _path(self, made: Any) -> None:
        for field in _PATHS:
            path = getattr(made, field, "")
            if not path.isprintable() or set(path) & set("\"'\\"):
                self.refuse(f"the path {_shown(path)}: it would become Python code")

    def _argument(self, made: Any) -> None:
        if made.name and not made.name.isidentifier():  # "from" is the name of an argument of some operators
            self.refuse(f"the argument {_shown(made.name)}: no identifier, and it would become Python code")

    def _operator(self, made: Any) -> None:
        if made.type == "as_operator":
            self._target(made.as_operator)

    def _target(self, target: str) -> None:
        if not is_harmless_target(target):
            self.refuse(f"{_shown(target)}: no operator that computes on tensors alone")

    def _node(self, made: Any) -> None:
        self._target(made.target)
        if made.name is not None:
            self.identifiers([made.name], "the node")
        made.metadata = {key: made.metadata[key] for key in _KEPT_METADATA if key in made.metadata}

    def _graph(self, made: Any) -> None:
        for table in _TABLES:
            self.identifiers(getattr(made, table), "the value")

    def _device(self, made: Any) -> None:
        if made.type not in _DEVICES:
            self.refuse(f"the device {_shown(made.type)}: no device of PyTorch")

    def _signature(self, made: Any) -> None:
        self.identifiers(made.forward_arg_names or [], "the argument")
        for text in (made.in_spec, made.out_spec):
            for problem in _tree_problems(text):
                self.refuse(problem)
        self.identifiers(_keywords(made.in_spec), "the argument")

    def _module(self, made: Any) -> None:
        made.metadata = {}

    def _program(self, made: Any) -> None:
        for name in made.range_constraints:
            number = re.search(r"[0-9]*$", name)
            if number and number[0] and int(number[0][:20]) > MAXIMUM_SYMBOL:
                self.refuse(f"the symbol {_shown(name)}: torch counts up to its number")
            self._expression(name, "the size")
        for guard in made.guards_code:
            self._expression(guard, "the guard")

    def _expression(self, text: str, what: str) -> None:
        try:
            parse_symbolic(text)
        except ValueError as error:
            self.refuse(f"{what} {_shown(text)}: {error}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _tree_problems(text: str) -> Iterator[str]:
    """What in a tree of arguments torch would import, or could not read."""
    try:
        protocol, root = json.loads(text)
        stack = [root]
        while stack:
            node = stack.pop()
            kind, context = node["type"], node["context"]
            stack += node["children_spec"]
            if kind is None:
                continue
            if kind not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
                yield f"a tree of arguments of type {_shown(str(kind))}, which nothing in this process has registered"
            elif kind == "collections.defaultdict":
                yield from _factory_problems(context)
            else:
                yield from _enumeration_problems(context)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        yield f"a tree of arguments {_shown(text)} cannot be read: {error!r:.80}"
        return
    if protocol != 1:
        yield f"a tree of arguments of protocol {protocol!r:.20}"


def _factory_problems(context: Any) -> Iterator[str]:
    if context["default_factory_module"] != "builtins" or context["default_factory_name"] not in _FACTORIES:
        yield f"a defaultdict made by {context['default_factory_module']!r:.60}.{context['default_factory_name']!r:.60}"


def _enumeration_problems(context: Any) -> Iterator[str]:
    """Members of enumerations among the keys of a container: torch imports the module that is named for them."""
    found: list[dict[str, Any]] = []
    value = json.loads(context) if isinstance(context, str) and context[:1] in '[{"n' else context
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if "__enum__" in one:
                found.append(one)
            stack += one.values()
        elif isinstance(one, list):
            stack += one
    for member in found:
        module, _, path = str(member.get("fqn")).partition(":")
        owner: Any = sys.modules.get(module)
        for part in path.split("."):
            owner = vars(owner).get(part) if owner is not None else None
        if not (isinstance(owner, type) and issubclass(owner, enum.Enum)):
            yield f"a key of the type {_shown(str(member.get('fqn')))}: no enumeration that is loaded"


def _keywords(text: str) -> list[str]:
    """The names of keyword arguments in the tree of a module's inputs: ``((...), {...})``."""
    try:
        arguments = json.loads(text)[1]["children_spec"]
        keys = json.loads(arguments[1]["context"]) if arguments[1]["type"] == "builtins.dict" else []
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return []
    return [str(key) for key in keys]
