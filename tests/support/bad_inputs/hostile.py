"""53 to 57: files that would run code, read or write other files, grow or run for ever. `MARK` is what they write."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper
from torch.export import Dim

from tests.support.bad_inputs.archives import MARK
from tests.support.bad_inputs.case import OUTPUT, BadInput, compile_commands
from tests.support.bad_inputs.files import INPUT, artifact, exported, find, rezip, scripted

Program = dict[str, Any]
_CODE = f"open('{MARK}', 'w')"
_TREE = ["children_spec", "context", "type"]


class _Sized(torch.nn.Module):
    """Symbolic dims, a guard and a keyword argument."""

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale).reshape(x.shape[0] // 2, 2, -1) if x.shape[0] % 2 == 0 else x


@cache
def symbolic() -> bytes:
    file = io.BytesIO()
    shapes = {"x": {0: Dim.AUTO}, "scale": None}
    inputs = {"x": torch.ones(4, 3), "scale": torch.ones(3)}
    torch.export.save(torch.export.export(_Sized().eval(), (), inputs, dynamic_shapes=shapes), file)
    return file.getvalue()


def edited(change: Callable[[Program], None], sound: bytes) -> bytes:
    """Returns a ``.pt2`` with another program in it."""

    def edit(entries: dict[str, bytes]) -> None:
        name = find(entries, "models/model.json")
        program = json.loads(entries[name])
        before = json.dumps(program)
        change(program)
        assert json.dumps(program) != before
        entries[name] = json.dumps(program).encode()

    return rezip(sound, edit)


def _nodes(program: Program) -> list[Program]:
    return program["graph_module"]["graph"]["nodes"]


def _signature(program: Program) -> Program:
    return program["graph_module"]["module_call_graph"][0]["signature"]


def renamed(program: Program, new: str) -> None:
    """Gives the first input another name, wherever it stands."""
    old = program["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"]
    text = json.dumps(program).replace(f'"name": "{old}"', f'"name": {json.dumps(new)}')
    text = text.replace(f'"{old}": {{"dtype"', f'{json.dumps(new)}: {{"dtype"')
    program.update(json.loads(text))


def _with_size(text: str) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        found = json.dumps(program)
        changed = re.sub(r'"expr_str": "(?:[^"\\]|\\.)*"', lambda _: f'"expr_str": {json.dumps(text)}', found)
        program.update(json.loads(changed))

    return change


def _with_target(target: str, *arguments: Program) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        node = dict(_nodes(program)[-1])
        given = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
        _nodes(program)[-1].update({**node, "target": target, "inputs": given})

    return change


def _with_tree(kind: str, context: Any) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        tree = json.dumps([1, dict(zip(_TREE, ([], context, kind), strict=True))])
        _signature(program)["out_spec"] = tree

    return change


def _with_parameter(name: str) -> Callable[[Program], None]:
    def change(program: Program) -> None:
        for spec in program["graph_module"]["signature"]["input_specs"]:
            if "parameter" in spec:
                spec["parameter"]["parameter_name"] = name

    return change


def _text(value: str) -> Program:
    return {"as_string": value}


_ENUM = json.dumps([{"__enum__": True, "fqn": "executed_module:A", "name": "B"}])
_FACTORY = {"default_factory_module": "executed_module", "default_factory_name": "f", "dict_context": []}
EDITS: dict[str, tuple[Callable[[Program], None], bool]] = {
    "size": (_with_size(f"__import__('builtins').{_CODE}"), True),
    "size-attribute": (_with_size("Symbol('s0').__class__"), True),
    "size-huge": (_with_size("PowByNatural(Integer(10), Integer(10000000000))"), True),
    "size-deep": (_with_size("(" * 100_000 + "1" + ")" * 100_000), True),
    "guard": (lambda program: program["guards_code"].append(f"{_CODE} or True"), True),
    "guard-walrus": (lambda program: program["guards_code"].append(f"(f := {_CODE}) is not None"), True),
    "range": (
        lambda program: program["range_constraints"].update({"u99999999999": {"min_val": 0, "max_val": 1}}),
        True,
    ),
    "input-name": (lambda program: renamed(program, f"x={_CODE}"), False),
    "input-keyword": (lambda program: renamed(program, "lambda"), False),
    "argument-name": (lambda program: _signature(program).update({"forward_arg_names": [f"x={_CODE}"]}), False),
    "keyword-name": (
        lambda program: _signature(program).update(
            {"in_spec": _signature(program)["in_spec"].replace("scale", f"s':{_CODE.replace(chr(39), '')},'")}
        ),
        True,
    ),
    "node-name": (lambda program: _nodes(program)[-1].update({"name": f"x={_CODE};y"}), False),
    "parameter-name": (_with_parameter(f'a"), {_CODE}, getattr(self, "b'), False),
    "system": (_with_target("torch.os.system", _text(f"touch {MARK}")), False),
    "load": (_with_target("torch.load", _text("model.pt")), False),
    "library": (_with_target("torch.ops.load_library.__call__", _text("evil.so")), False),
    "import": (_with_target("torch.ops.import_module.__call__", _text("evil")), False),
    "save": (_with_target("torch.ops.aten.save.default", _text(MARK)), False),
    "from-file": (_with_target("torch.ops.aten.from_file.default", _text(MARK), {"as_bool": True}), False),
    "methodcaller": (_with_target("_operator.methodcaller", _text("tofile"), _text(MARK)), False),
    "attrgetter": (_with_target("_operator.attrgetter.__class__", _text("x")), False),
    "extension": (_with_target("#evil:op"), False),
    "debug-print": (_with_target("torch.ops.debugprims.load_tensor.default", _text(MARK)), False),
    "assembler": (_with_target("torch.ops.higher_order.inline_asm_elementwise", _text("int3")), False),
    "operator-argument": (_with_target("torch.ops.aten.relu.default", {"as_operator": "torch.os.system"}), False),
    "tree-enumeration": (_with_tree("builtins.dict", _ENUM), False),
    "tree-factory": (_with_tree("collections.defaultdict", _FACTORY), False),
    "tree-type": (_with_tree("subprocess.Popen", "null"), False),
    "device": (
        lambda program: program.update(
            json.loads(json.dumps(program).replace('"type": "cpu"', '"type": "privateuseone"'))
        ),
        False,
    ),
}
"""What is changed in a program, and whether it is changed in the one with symbolic dims."""


def hostile_export(name: str) -> bytes:
    change, sized = EDITS[name]
    return edited(change, symbolic() if sized else exported())


def exports(folder: Path) -> list[list[str]]:
    for name in EDITS:
        (folder / f"{name}.pt2").write_bytes(hostile_export(name))
    (folder / "executed_module.py").write_text(_CODE)
    return compile_commands(*(f"{name}.pt2" for name in EDITS))


def exports_that_contradict_their_schema(folder: Path) -> list[list[str]]:
    """Values of other types than the schema has, where torch takes any."""
    changes: dict[str, Callable[[Program], None]] = {
        "number": lambda program: program.update({"guards_code": [5]}),
        "table": lambda program: program["graph_module"].update({"graph": []}),
        "truth": lambda program: program["graph_module"]["graph"].update({"is_single_tensor_return": "no"}),
        "target": lambda program: _nodes(program)[0].update({"target": ["torch.os.system"]}),
    }
    for name, change in changes.items():
        (folder / f"{name}.pt2").write_bytes(edited(change, exported()))
    return compile_commands(*(f"{name}.pt2" for name in changes))


def with_source(change: Callable[[str], str]) -> bytes:
    """Returns a TorchScript file with other source."""

    def edit(entries: dict[str, bytes]) -> None:
        name = next(name for name in entries if name.endswith("code/__torch__.py") or "container" in name)
        before = entries[name].decode()
        entries[name] = change(before).encode()
        assert entries[name] != before.encode()

    return rezip(scripted(), edit)


def _statement(text: str) -> Callable[[str], str]:
    """Puts a statement in front of the first of ``forward``."""
    return lambda source: re.sub(r"(-> Tensor:\n)", lambda match: f"{match[0]}    {text}\n", source, count=1)


_SETSTATE = f'  def __setstate__(self, state: int) -> NoneType:\n    torch.save(1, "{MARK}")\n    return None\n'
SOURCES: dict[str, Callable[[str], str]] = {
    "save": _statement(f'torch.save(1, "{MARK}")'),
    "save-method": _statement(f'_s = (input).save("{MARK}")'),
    "save-alias": _statement(f'_s = torch.save\n    _s(1, "{MARK}")'),
    "save-getattr": _statement(f'_s = getattr(input, "save")("{MARK}")'),
    "save-escaped": _statement(f'_s = getattr(input, "s\\141ve")("{MARK}")'),
    "save-ops": _statement(f'ops.aten.save(1, "{MARK}")'),
    "save-split": _statement(f'_s = torch . \\\n    save(1, "{MARK}")'),
    "save-comment": _statement(f'_s = """\n    """; torch.save(1, "{MARK}")'),
    "from-file": _statement(f'_s = torch.from_file("{MARK}", True, 10)'),
    "default": lambda source: source.replace(
        "input: Tensor)", f'input: Tensor, y: Tensor=torch.from_file("{MARK}", True, 10))', 1
    ),
    "setstate": lambda source: source.replace("  def forward", f"{_SETSTATE}  def forward", 1),
    "setstate-endless": lambda source: source.replace(
        "  def forward",
        "  def __setstate__(self, state: int) -> NoneType:\n    while True:\n      pass\n    return None\n"
        "  def forward",
        1,
    ),
    "profiler": _statement('_s = ops.profiler._record_function_enter("x")'),
    "remote": _statement("_s = ops.prim.rpc_sync(1)"),
    "class": _statement('_s = __torch__.torch.classes._nnapi.Compilation("x")'),
    "alias-of-view": _statement("_s = torch._reshape_alias(input, [1000000], [1])"),
    "other-text": _statement("_s = 'x'"),
}


def scripts(folder: Path) -> list[list[str]]:
    for name, change in SOURCES.items():
        (folder / f"{name}.pt").write_bytes(with_source(change))
    lower = rezip(scripted(), lambda entries: entries.update({_upper(entries): b"import os"}))
    (folder / "case.pt").write_bytes(lower)
    return compile_commands(*(f"{name}.pt" for name in [*SOURCES, "case"]), inputs=(INPUT,))


def _upper(entries: dict[str, bytes]) -> str:
    """The name of an entry of source in other letters: torch finds it under both."""
    folder, _, name = find(entries, "code/").partition("/")
    return f"{folder}/{name.upper()}"


def all_commands(folder: Path) -> list[list[str]]:
    """Each command that opens a file, with a file that would write another."""
    names = ["guard.pt2", "system.pt2", "save.pt"]
    for name in names[:2]:
        (folder / name).write_bytes(hostile_export(name.removesuffix(".pt2")))
    (folder / "save.pt").write_bytes(with_source(SOURCES["save"]))
    np.savez(folder / "data.npz", input=np.zeros((2, 2, 8), np.float32))
    found: list[list[str]] = []
    for name in names:
        given = ["--input", INPUT] if name.endswith(".pt") else []
        found += [["compile", name, *given, "-o", OUTPUT], ["check", name, *given], ["inspect", name, *given]]
        found += [["bench", name, *given], ["quantize", name, *given, "--calib", "data.npz", "-o", OUTPUT]]
        found += [["run", name], ["verify", name], ["emit-c", name, "-o", "made"], ["opt", name]]
    return found


def nested_functions(folder: Path) -> list[list[str]]:
    """Forty functions, each of which calls the one before twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], imports)]
    for level in range(1, 40):
        calls = [
            helper.make_node(f"f{level - 1}", [source], [target], domain="own")
            for source, target in (("x", "t"), ("t", "y"))
        ]
        functions.append(helper.make_function("own", f"f{level}", ["x"], ["y"], calls, imports))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("f39", ["x"], ["y"], domain="own")], "g", values[:1], values[1:])
    model = helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return compile_commands("model.onnx")


def resealed(change: Callable[[Program], None]) -> bytes:
    """Returns an artifact with another manifest and the content id of that."""

    def edit(entries: dict[str, bytes]) -> None:
        manifest = json.loads(entries["manifest.json"])
        change(manifest)
        manifest["content_id"] = ""
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        entries["manifest.json"] = text.replace('"content_id":""', f'"content_id":"{digest}"').encode()

    return rezip(artifact(), edit)


TREES: list[Any] = [
    *(7, "x", True, [0], {"kind": "dict", "items": [0]}, {"kind": "list"}, {"kind": "tuple", "items": 0}),
    *({"kind": "dict", "keys": [[]], "items": [0]}, {"kind": "constant"}, {"items": [0, 0], "names": None}),
]


def artifact_trees(folder: Path) -> list[list[str]]:
    """Trees of arguments and results that are none."""
    names: list[str] = []
    for which in ("input_tree", "output_tree"):
        for number, tree in enumerate(TREES):
            names.append(f"{which}{number}.lk")
            (folder / names[-1]).write_bytes(resealed(lambda m, w=which, t=tree: m.update({w: t})))
    return [["verify", name] for name in names]


CASES = [
    BadInput(53, "hostile-exports", exports, says=("LK2002",)),
    BadInput(53, "exports-against-the-schema", exports_that_contradict_their_schema),
    BadInput(54, "hostile-scripts", scripts, says=("LK2002", "LK1002")),
    BadInput(55, "hostile-in-all-commands", all_commands, says=("LK2002", "LK1001", "LK1002", "LK8001")),
    BadInput(56, "nested-functions", nested_functions, says=("LK2003",), seconds=10.0),
    BadInput(57, "trees-that-are-none", artifact_trees, says=("LK8001",)),
]
