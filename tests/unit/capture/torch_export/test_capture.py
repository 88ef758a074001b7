from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowerkit.capture.capture import capture
from lowerkit.errors import CaptureError, UnsupportedError, UsageError
from lowerkit.program.locations import origin_of
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import Dim, TensorSpec
from lowerkit.runtimes.nesting import rebuild_outputs
from tests.unit.capture.running import assert_same_as_eager, op_counts, operations, run_program


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).mean((2, 3))
        y += 1
        return self.out(nn.functional.gelu(self.norm(y)))


def test_whole_ops_weights_by_reference_and_values() -> None:
    torch.manual_seed(0)
    program = capture(Block().eval(), (torch.randn(2, 3, 8, 8),))
    counts = op_counts(program)
    for name in ("conv2d", "batch_norm", "layer_norm", "gelu", "linear"):
        assert counts[f"torch.aten.{name}"] == 1, name
    assert counts["lk.weight"] == len(program.weights) == 9
    assert counts["torch.vtensor.literal"] == 0
    assert not [name for name in counts if name.endswith("_")]
    assert program.module.operation.verify()
    assert program.signature.inputs == [TensorSpec("x", "f32", [2, 3, 8, 8])]
    assert program.signature.outputs == [TensorSpec("output", "f32", [2, 4])]
    assert_same_as_eager(program, [np.random.default_rng(1).standard_normal((2, 3, 8, 8), np.float32)])


def test_every_op_has_node_module_and_line() -> None:
    program = capture(Block().eval(), (torch.randn(2, 3, 8, 8),))
    (linear,) = [operation for operation in operations(program) if operation.name == "torch.aten.linear"]
    origin = origin_of(linear.location)
    assert origin.node == "linear"
    assert origin.module == "out"
    assert origin.source_line is not None
    assert origin.source_line.startswith(__file__)
    assert all(origin_of(operation.location).node for operation in operations(program)[:-1])


def test_weights_are_not_copied_and_ties_are_kept() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids))

    model = Tied().eval()
    program = capture(model, (torch.tensor([[1, 2]]),))
    (name,) = program.weights.names()
    assert np.shares_memory(program.weights.get(name), model.table.weight.detach().numpy())
    assert_same_as_eager(program, [np.array([[3, 4]])])


def test_buffers_of_every_kind() -> None:
    class Buffers(nn.Module):
        kept: torch.Tensor
        passing: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(4.0))
            self.register_buffer("passing", torch.arange(4.0) * 2, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.kept + self.passing * torch.tensor([1.0, 2.0, 3.0, 4.0])

    assert_same_as_eager(capture(Buffers(), (torch.ones(2, 4),)), [np.full((2, 4), 3, np.float32)])


def test_what_depends_on_no_input_is_folded_bit_for_bit() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.arange(x.shape[1])
            mask = steps[:, None] >= steps[None, :]
            return torch.where(mask, x[:, None, :].cos(), torch.sin(steps / 7))

    program = capture(Masked(), (torch.randn(2, 5),))
    counts = op_counts(program)
    assert not {"torch.aten.arange", "torch.aten.ge.Tensor", "torch.aten.sin"} & set(counts)
    assert counts["lk.weight"] == 2
    assert_same_as_eager(program, [np.random.default_rng(0).standard_normal((2, 5), np.float32)])


def test_large_constants_are_not_made() -> None:
    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(1 << 32).sum()

    program = capture(Large(), (torch.ones(2),))
    assert op_counts(program)["torch.aten.zeros"] == 1
    assert program.weights.names() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_floating_types(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).to(dtype).eval()
    program = capture(model, (torch.randn(2, 4).to(dtype),))
    name = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}[str(dtype).removeprefix("torch.")]
    assert program.signature.inputs[0].dtype == program.signature.outputs[0].dtype == name
    assert program.weights.spec("weight") == (name, (3, 4))
    assert program.weights.get("weight").astype(np.float64).tolist() == model.weight.double().tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_integer_inputs(dtype: torch.dtype) -> None:
    class Select(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, 1.0, -1.0)

    program = capture(Select(), (torch.ones(3).to(dtype),))
    assert np.dtype(program.example_inputs[0].dtype).itemsize == dtype.itemsize  # type: ignore[index]
    assert program.module.operation.verify()


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


pytree.register_dataclass(Result, serialized_type_name="tests.Result")


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, extra: dict[str, Any], scale: int, flag: bool = True) -> Any:
        y = x * scale if flag else x
        return {"pair": Pair(y + extra["a"], y), "list": [y - 1, None, 3], "result": Result(y * extra["b"][0])}


def test_nested_inputs_and_outputs() -> None:
    x, extra = torch.ones(2), {"a": torch.ones(2), "b": [torch.full((2,), 5.0)]}
    program = capture(Nested(), (x, extra, 3), kwargs={"flag": True})
    assert program.signature.inputs[0].name == "x"
    assert len(program.signature.inputs) == 3
    names = [spec.name for spec in program.signature.outputs]
    assert names == ["pair.left", "pair.right", "list.0", "result.logits"]
    inputs = [np.full(2, value, np.float32) for value in (1, 2, 3)]
    found = rebuild_outputs(program.output_tree, run_program(program, inputs))
    assert found["pair"]["left"].tolist() == [5, 5]
    assert found["list"][0].tolist() == [2, 2]
    assert found["list"][1:] == [None, 3]
    assert found["result"]["logits"].tolist() == [9, 9]


@pytest.mark.skipif(torch.__version__.startswith("2.10."), reason="torch.export of 2.10 refuses this module itself")
def test_symbolic_dims_have_names_ranges_and_expressions() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.cat([x, x * 2], 0), nn.functional.max_pool2d(y[None, None], (2, 1))

    rows, other = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("other", min=4, max=32)
    program = capture(Rows(), (torch.ones(3, 4), torch.ones(6, 2)), {"x": {0: rows}, "y": {0: other}})
    assert program.signature.dims == [Dim("rows", 2, 64), Dim("other", 4, 32)]
    assert program.signature.inputs[0].shape == ["rows", 4]
    assert program.signature.outputs[0].shape == [("mul", "rows", 2), 4]
    *_, pooled, _ = program.signature.outputs[1].shape
    assert [evaluate(pooled, {"other": value}) for value in (4, 7, 32)] == [2, 3, 16]
    assert "torch.assume_strict_symbolic_shapes" in program.main.attributes
    assert "?" in str(program.main.attributes["function_type"])


def test_unnamed_symbolic_dims() -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    program = capture(Double(), (torch.ones(3, 4),), ({0: torch.export.Dim.DYNAMIC},))
    (dim,) = program.signature.dims
    assert dim.name == "x_0"
    assert program.signature.outputs[0].shape == ["x_0", 4]


def test_mutated_buffers_are_states() -> None:
    class Counter(nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.full((2,), 10.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.total * 1
            self.total += x
            return before + self.total

    model = Counter()
    program = capture(model, (torch.ones(2),))
    assert program.signature.states == [TensorSpec("total", "f32", [2])]
    names = [operation.name for operation in operations(program)]
    assert names.count("lk.state_read") == names.count("lk.state_write") == 1
    assert names.index("lk.state_read") < names.index("lk.state_write") == len(names) - 2
    assert program.eager is not None
    program.eager(np.ones(2, np.float32))
    assert program.weights.get("total").tolist() == [10, 10]


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


def test_training_mode_is_refused() -> None:
    with pytest.raises(CaptureError, match="eval") as caught:
        capture(Training(), (torch.ones(2),))
    assert caught.value.code == "LK2001"
    capture(Training().eval(), (torch.ones(2),))


def test_a_batch_norm_that_changes_its_statistics_is_refused() -> None:
    inputs = (torch.ones(2, 3, 4),)
    with pytest.raises(CaptureError, match="training mode") as caught:
        capture(nn.Sequential(nn.BatchNorm1d(3)).train(), inputs)
    assert caught.value.code == "LK2001"
    assert caught.value.details and "aten.batch_norm" in caught.value.details[0]
    capture(nn.Sequential(nn.BatchNorm1d(3)).eval(), inputs)
    capture(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)).eval(), inputs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers_is_refused_in_training_mode(kind: Any) -> None:
    inputs = (torch.ones(2, 1, 3),)
    with pytest.raises(CaptureError, match="training mode") as caught:
        capture(kind(3, 2, num_layers=2, dropout=0.5).train(), inputs)
    assert caught.value.code == "LK2001"
    capture(kind(3, 2, num_layers=2, dropout=0.5).eval(), inputs)
    capture(kind(3, 2, num_layers=2).train(), inputs)


@pytest.mark.parametrize("script", [False, True])
def test_statistics_of_an_instance_norm_are_refused_in_training_mode(script: bool) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.InstanceNorm1d(3, track_running_stats=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x)

    inputs = (torch.ones(2, 3, 4),)
    for training in (True, False):
        module = Normed().train(training)
        model: Any = torch.jit.script(module) if script else module
        if training:
            with pytest.raises(CaptureError, match="training mode") as caught:
                capture(model, inputs)
            assert caught.value.code == "LK2001"
        else:
            capture(model, inputs)


def test_values_that_decide_are_refused_with_their_line() -> None:
    class Decides(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(UnsupportedError) as caught:
        capture(Decides(), (torch.ones(2),))
    assert caught.value.code == "LK4002"
    assert Path(__file__).name in str(caught.value)


def test_shapes_that_depend_on_values_are_refused() -> None:
    class Nonzero(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    with pytest.raises(UnsupportedError) as caught:
        capture(Nonzero(), (torch.ones(2),))
    assert caught.value.code == "LK4002"


def test_ops_that_give_shapes_of_values_are_all_named() -> None:
    class Picks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].sum() + torch.nonzero(x).sum()

    with pytest.raises(UnsupportedError) as caught:
        capture(Picks(), (torch.ones(3),))
    assert caught.value.code == "LK4002"
    assert [detail.split(":")[1].strip() for detail in caught.value.details] == [
        "aten.index.Tensor at " + __file__,
        "aten.nonzero.default at " + __file__,
    ]


def test_numbers_and_sparse_tensors_are_refused() -> None:
    class Number(nn.Module):
        def forward(self, x: torch.Tensor) -> float:
            return x.item()

    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_dense()

    for module, given, text in (
        (Number(), torch.tensor(1.0), "returned as an output"),
        (Total(), torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
    ):
        with pytest.raises(UnsupportedError, match=text) as caught:
            capture(module, (given,))
        assert caught.value.code == "LK4001"


def test_constants_and_values_without_elements_can_be_outputs() -> None:
    class Constants(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.arange(3) * 2, x[:0].repeat(2, 1), x[:, :0].sum(1) + x[:, 0], torch.ones(2, 2)

    x = torch.randn(4, 5)
    assert_same_as_eager(capture(Constants(), (x,)), [x.numpy()])


def test_everything_unsupported_is_listed_at_once() -> None:
    class Strange(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            y.add_(1)
            z = torch.fft.fft(x)
            return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (z.real,))

    with pytest.raises(UnsupportedError) as caught:
        capture(Strange(), (torch.ones(2), torch.ones(2)))
    text = "\n".join(caught.value.details)
    assert "complex64" in text
    assert "'y' is changed in place" in text
    assert Path(__file__).name in text


def test_dynamic_dims_that_do_not_fit() -> None:
    with pytest.raises(CaptureError, match="dynamic") as caught:
        capture(nn.Linear(4, 2), (torch.ones(3, 4),), ({1: torch.export.Dim("n")},))
    assert caught.value.code == "LK2001"


def test_a_module_that_fails_names_its_line() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.ones(7, 2)

    with pytest.raises(CaptureError) as caught:
        capture(Fails(), (torch.ones(3, 4),))
    assert Path(__file__).name in str(caught.value)


@pytest.mark.parametrize("model", [object(), "text".encode, lambda x: x])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(UsageError) as caught:
        capture(model, (torch.ones(1),))
    assert caught.value.code == "LK2001"


def test_missing_example_inputs() -> None:
    with pytest.raises(UsageError) as caught:
        capture(nn.Linear(2, 2))
    assert caught.value.code == "LK1003"


def test_exported_programs_bring_their_inputs_and_stay_unchanged() -> None:
    exported = torch.export.export(Block().eval(), (torch.randn(2, 3, 8, 8),), strict=False)
    before = str(exported.graph)
    program = capture(exported)
    assert str(exported.graph) == before
    assert program.example_inputs is not None
    assert_same_as_eager(program, program.example_inputs)


def test_gradient_mode_blocks_are_imported_in_place() -> None:
    class Guarded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x * 2
            return y + x

    exported = torch.export.export(Guarded(), (torch.ones(2, requires_grad=True),), strict=False)
    assert_same_as_eager(capture(exported), [np.full(2, 3, np.float32)])
