"""The .pt2 loader beside ``torch.export.load``: the same program, without TorchDynamo."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from lowerkit.capture.operator_allowlist import is_harmless_target
from lowerkit.capture.torch_export.capture import capture_exported, load_exported
from lowerkit.capture.torch_export.pt2.load import read_exported
from tests.unit.capture.running import assert_same_as_eager


class Splitting(nn.Module):
    """Tied weights, a buffer, a constant, in-place ops, an op with a list of results, nested inputs and outputs."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 9)
        self.second = nn.Linear(4, 9)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(9.0))

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        one, two, _ = (self.first(pair[0]) + self.second(pair[1]) * self.table).split(3, dim=-1)
        one = one + torch.tensor([1.0, float("inf"), 2.0]).clamp(max=7)
        return {"sum": one.add_(two), "two": two.sigmoid()}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    made = tmp_path_factory.mktemp("exported") / "model.pt2"
    inputs = ((torch.randn(2, 4), torch.randn(2, 4)),)
    torch.export.save(torch.export.export(Splitting().eval(), inputs, strict=False), made)
    return made


def test_same_program_as_torch_loads(path: Path) -> None:
    ours, theirs = read_exported(path), torch.export.load(str(path))
    assert ours.graph_module.code == theirs.graph_module.code
    assert ours.graph_signature == theirs.graph_signature
    assert ours.call_spec == theirs.call_spec
    assert list(ours.state_dict) == list(theirs.state_dict)
    for name, tensor in theirs.state_dict.items():
        assert torch.equal(ours.state_dict[name], tensor)
        assert type(ours.state_dict[name]) is type(tensor)
        assert ours.state_dict[name].requires_grad == tensor.requires_grad
    assert ours.state_dict["first.weight"].data_ptr() == ours.state_dict["second.weight"].data_ptr()
    assert list(ours.constants) == list(theirs.constants)
    for name, tensor in theirs.constants.items():
        found = ours.constants[name]
        assert isinstance(tensor, torch.Tensor)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, tensor)
    for mine, other in zip(ours.graph.nodes, theirs.graph.nodes, strict=True):
        assert mine.name == other.name
        assert mine.meta.get("stack_trace") == other.meta.get("stack_trace")
        assert mine.meta.get("nn_module_stack") == other.meta.get("nn_module_stack")
        value, expected = mine.meta.get("val"), other.meta.get("val")
        if isinstance(expected, torch.Tensor):
            assert (value.shape, value.dtype, value.stride()) == (expected.shape, expected.dtype, expected.stride())
    inputs = ((torch.randn(2, 4), torch.randn(2, 4)),)
    outputs, expected = ours.module()(*inputs), theirs.module()(*inputs)
    assert all(torch.equal(outputs[name], expected[name]) for name in expected)


def test_split_of_a_file_is_imported_and_runs(path: Path) -> None:
    generator = np.random.default_rng(8)
    arrays = [generator.standard_normal((2, 4), np.float32) for _ in range(2)]
    assert_same_as_eager(capture_exported(read_exported(path)), arrays)


def test_dynamo_is_not_loaded_and_works_afterwards(path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from lowerkit.capture.operator_allowlist import is_harmless_target
from lowerkit.capture.torch_export.capture import capture_exported, load_exported, load_exported
program = capture_exported(load_exported(Path({str(path)!r})))
assert not [name for name in sys.modules if name in ("torch._dynamo", "torch._inductor")], "slow to import"
import torch
x = torch.randn(2, 4)
assert program.eager is not None
assert len(program.eager(x.numpy(), x.numpy())) == 2
linear = torch.nn.Linear(4, 3)
again = torch.export.export(linear, (x,), strict=True).module()
assert torch.equal(again(x), linear(x))
assert torch.allclose(torch.compile(linear, backend="eager")(x), linear(x))
assert torch.fx.experimental.validator.bisect and torch._export.non_strict_utils.make_fake_inputs
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_stand_ins_make_way_for_what_they_do_not_have() -> None:
    script = """
import sys
from lowerkit.capture.torch_export.pt2.load import _without_dynamo
with _without_dynamo():
    import torch._dynamo.config
    assert "torch._dynamo.convert_frame" not in sys.modules
    from torch.fx.experimental.validator import ValidationException
    from torch._dynamo import optimize
assert optimize is sys.modules["torch._dynamo"].optimize
assert ValidationException.__module__ == "torch.fx.experimental.validator"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_compressed_entry_is_refused(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in source.infolist():
            archive.writestr(info.filename, source.read(info))
    with pytest.raises(ValueError, match="compressed or cut"):
        read_exported(packed)


class Sized(nn.Module):
    """Symbolic dims under a condition, keyword arguments, a dict with an order, floats of sizes, control flow."""

    def forward(self, x: torch.Tensor, *, scale: dict[str, torch.Tensor]) -> OrderedDict[str, torch.Tensor]:
        halves = x.reshape(x.shape[0] // 2, 2, -1) if x.shape[0] % 2 == 0 and x.shape[1] != 7 else x
        larger = nn.functional.interpolate(halves, scale_factor=1.5) * scale["by"]
        chosen = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
        return OrderedDict(larger=larger, chosen=torch.vmap(torch.sum)(chosen))


@pytest.mark.parametrize("derived", [False, True])
def test_symbolic_programs_are_those_that_torch_loads(derived: bool, tmp_path: Path) -> None:
    half = Dim("half", min=2, max=50)
    shapes = {"x": {0: 2 * half} if derived else {0: Dim.AUTO, 1: Dim.AUTO}, "scale": {"by": None}}
    inputs = {"x": torch.randn(4, 6), "scale": {"by": torch.randn(1)}}
    path = tmp_path / "sized.pt2"
    torch.export.save(torch.export.export(Sized().eval(), (), inputs, dynamic_shapes=shapes, strict=False), path)
    ours, theirs = load_exported(path), torch.export.load(str(path))
    assert ours.graph_module.code == theirs.graph_module.code
    assert ours.graph_signature == theirs.graph_signature
    assert ours.call_spec == theirs.call_spec
    assert str(ours.range_constraints) == str(theirs.range_constraints)
    assert ours._guards_code == theirs._guards_code  # pyright: ignore[reportPrivateUsage]
    assert [str(node.meta.get("val")) for node in ours.graph.nodes] == [
        str(node.meta.get("val")) for node in theirs.graph.nodes
    ]
    outputs, expected = ours.module(check_guards=False)(**inputs), theirs.module()(**inputs)
    assert all(torch.equal(outputs[name], expected[name]) for name in expected)


def test_an_operator_of_the_process_is_taken_if_it_takes_tensors(tmp_path: Path) -> None:
    """As it is registered by code that the user imported; one with text could name a file."""
    library = torch.library.Library("strangers", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("write(Tensor x, str where) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    assert is_harmless_target("torch.ops.strangers.twice.default")
    assert not is_harmless_target("torch.ops.strangers.write.default")
    assert not is_harmless_target("torch.ops.strangers.twice.overloads")
