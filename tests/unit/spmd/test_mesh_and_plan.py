"""Meshes and plans as users write them: what is wrong is named, with what there is and the nearest name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program, lower_program
from lowerkit.errors import InputError, LowerkitError, UsageError
from lowerkit.program.stage_file import read_stage, write_stage
from lowerkit.spmd.mesh import Mesh
from lowerkit.spmd.plan_file import entries_of, make_plan, read_plan
from lowerkit.spmd.sharding import sharding_of


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(6, 8)
        self.down_proj = torch.nn.Linear(8, 6)
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down_proj(torch.nn.functional.gelu(self.up_proj(x))))


def lowered(plan: dict[str, Any], mesh: str = "tp=2") -> Any:
    program = capture(torch.nn.Sequential(Block(), Block()).eval(), (torch.randn(3, 6),))
    lower_program(program, "canonical", CompileOptions(sharding=sharding_of(mesh, plan)))
    return program


def failure(plan: dict[str, Any]) -> LowerkitError:
    with pytest.raises(UsageError) as caught:
        lowered(plan)
    assert caught.value.code == "LK1011"
    return caught.value


@pytest.mark.parametrize("text", ["", "tp", "tp=", "=2", "tp=0", "tp=-1", "tp=65537", "Tp=2", "tp=two", "tp=2;x"])
def test_meshes_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        Mesh.parse(text)
    assert (caught.value.code, repr(text) in caught.value.message) == ("LK1011", True)
    assert "--mesh tp=2" in (caught.value.hint or "")


def test_meshes_of_several_axes() -> None:
    mesh = Mesh.parse("dp=2, tp=4")
    assert [(axis.name, axis.size) for axis in mesh.axes] == [("dp", 2), ("tp", 4)]
    assert (mesh.size, str(mesh)) == (8, "dp=2,tp=4")
    with pytest.raises(UsageError, match="names the axis 'tp' twice"):
        Mesh.parse("tp=2,tp=4")
    with pytest.raises(UsageError, match="has 1048576 ranks"):
        Mesh.parse("tp=1024,dp=1024")
    with pytest.raises(UsageError, match="cannot be read: 'dp'"):
        Mesh.parse("tp=2,dp")


def test_a_mesh_reads_and_prints() -> None:
    assert str(Mesh.parse(" tp=4 ")) == "tp=4"


def test_a_plan_without_a_mesh() -> None:
    with pytest.raises(UsageError, match="a plan is given and no mesh"):
        sharding_of(None, {})
    with pytest.raises(UsageError, match="--invariant is given and no mesh"):
        sharding_of(None, None, invariant=True)


def test_plans_of_several_axes() -> None:
    mesh = Mesh.parse("dp=2,pp=2,tp=2")
    entries = {"tp": {"up": "column"}, "pp": {"0": 0, "1": 1, "micro-batches": 4}, "dp": {"*": "batch"}}
    plan = make_plan(mesh, entries)
    assert [(axis.axis, axis.ranks) for axis in plan.axes] == [("dp", 2), ("tp", 2)]
    assert plan.stages is not None
    assert (plan.stages.axis, plan.stages.micro_batches) == ("pp", 4)
    assert entries_of(plan) == entries
    assert list(entries_of(plan)) == ["dp", "pp", "tp"]


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"*": "column"}, "does not say which axis of the mesh dp=2,tp=2"),
        ({"tp": {"*": "column"}, "dq": {"*": "batch"}}, "'dq' is no axis of the mesh dp=2,tp=2; did you mean 'dp'?"),
        ({"tp": {"*": "column"}}, "it says nothing of the axis 'dp'"),
        ({"tp": {"*": "column"}, "dp": {"a": 0}}, "no module is named for stage 1 of dp=2"),
        ({"tp": {"*": "column"}, "dp": {"a": 0, "b": 2}}, "dp: 'b' is 2, expected a number from 0 to 1"),
        ({"tp": {"a": 0, "b": 1}, "dp": {"a": 0, "b": 1}}, "are both axes of stages"),
        ({"tp": {"*": "column"}, "dp": {"a": 0, "b": 1, "micro-batches": 0}}, "expected a number from 1 to 1024"),
    ],
)
def test_plans_of_several_axes_that_are_wrong(entries: Any, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(Mesh.parse("dp=2,tp=2"), entries)
    assert part in "\n".join([caught.value.message, *caught.value.details])


def test_with_one_order_a_plan_serves_meshes_that_lack_an_axis() -> None:
    """What ranks along the axis would sum, each rank sums by itself; a plan that is given back says so, too."""
    entries = {"dp": {"x": "batch"}, "tp": {"up": "column", "down": "row"}}
    plan = make_plan(Mesh.parse("dp=2"), entries, invariant=True)
    assert [each.axis for each in plan.axes] == ["dp"]
    assert plan.sums is not None
    assert (plan.sums.axis, plan.sums.ranks) == ("tp", 1)
    assert entries_of(plan) == entries
    assert make_plan(Mesh.parse("dp=2,tp=2"), entries, invariant=True).sums is None
    with pytest.raises(UsageError, match="'tp' is no axis of the mesh dp=2"):
        make_plan(Mesh.parse("dp=2"), entries)
    with pytest.raises(UsageError, match="it says nothing of the axis 'tp'"):
        make_plan(Mesh.parse("dp=2,tp=2"), {"dp": entries["dp"], "tpp": entries["tp"]}, invariant=True)
    with pytest.raises(UsageError, match="'pp' is no axis of the mesh dp=2"):
        make_plan(Mesh.parse("dp=2"), {"dp": entries["dp"], "pp": {"up": 0, "down": 1}}, invariant=True)


def test_all_wrong_entries_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(Mesh.parse("tp=2"), [("a", "colum"), ("b", 3), ("c", "row"), ("c", "row"), ("", "row")])
    text = "\n".join([caught.value.message, *caught.value.details])
    assert "'a' is 'colum'" in text
    assert "did you mean 'column'?" in text
    assert "'b' is 3" in text
    assert "'c' stands twice" in text
    assert "a pattern is empty" in text
    assert caught.value.hint is not None
    assert "*.q_proj" in caught.value.hint


def test_an_empty_plan_is_wrong() -> None:
    with pytest.raises(UsageError, match="no entry"):
        sharding_of("tp=2", {})


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"*"', "[1" * 40000, '{"a": "row"} x', '\ud800{"a"}'],
    ids=["empty", "cut", "list", "text", "deep", "more", "surrogate"],
)
def test_plans_that_are_no_plan(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert caught.value.code == "LK1002"
    assert str(path) in caught.value.message


def test_a_plan_that_is_not_there_and_one_that_is_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_plan(path)


def test_a_file_keeps_order_and_what_it_says_twice(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"b": "row", "a": "column", "b": "column"}')
    assert read_plan(path) == [("b", "row"), ("a", "column"), ("b", "column")]


def test_the_nearest_module_is_named() -> None:
    error = failure({"*.up_prj": "column", "*.down_proj": "row", "norms": "replicate"})
    text = "\n".join([error.message, *error.details])
    assert "'*.up_prj' names no module of the model; near: '*.up_proj'" in text
    assert "'norms' names no module" in text


def test_a_module_without_a_product_is_named() -> None:
    assert "'*.norm' names '0.norm', which has no product" in failure({"*.norm": "column", "*_proj": "column"}).message


def test_an_entry_behind_one_that_names_the_same() -> None:
    error = failure({"*_proj": "column", "*.down_proj": "row"})
    assert "'*.down_proj' comes behind '*_proj', which names '0.down_proj' first" in error.message


def test_a_program_behind_canonical_is_not_split(tmp_path: Path) -> None:
    program = capture(Block().eval(), (torch.randn(3, 6),))
    lower_program(program, "canonical", CompileOptions())
    lower_program(program, "partitioned", CompileOptions())
    with pytest.raises(UsageError, match="at stage 'partitioned' already"):
        lower_program(program, "fused", CompileOptions(sharding=sharding_of("tp=2", {"up_proj": "column"})))


@pytest.mark.parametrize("stage", ["canonical", "fused"])
def test_a_stage_file_keeps_the_mesh_and_what_the_ranks_share(stage: str, tmp_path: Path) -> None:
    program = capture(Block().eval(), (torch.randn(3, 6),))
    plan = sharding_of("tp=2", {"up_proj": "column", "down_proj": "row"})
    lower_program(program, stage, CompileOptions(sharding=plan))
    write_stage(program, tmp_path / "b.mlir")
    read = read_stage(tmp_path / "b.mlir", stage)
    assert read.mesh == program.mesh
    compiled = [compile_program(each, CompileOptions(golden=False)) for each in (program, read)]
    assert compiled[0].parts.program.buffers == compiled[1].parts.program.buffers
    assert compiled[0].parts.program.steps == compiled[1].parts.program.steps
    assert [axis.size for axis in compiled[1].parts.program.mesh] == [2]


def test_weights_are_stored_once_and_each_rank_reads_its_part() -> None:
    plan = sharding_of("tp=2", {"up_proj": "column", "down_proj": "row"})
    whole = compile_program(capture(Block().eval(), (torch.randn(3, 6),)), CompileOptions(golden=False))
    program = capture(Block().eval(), (torch.randn(3, 6),))
    split = compile_program(program, CompileOptions(golden=False, sharding=plan))
    shards = {buffer.weight.partition("@")[0]: buffer.shard for buffer in split.parts.program.buffers if buffer.shard}
    assert set(shards) == {"up_proj.weight", "up_proj.bias", "down_proj.weight"}
    assert split.sharding is not None
    document = json.loads(json.dumps(split.sharding.to_json()))
    assert document["collectives"] == {"all_reduce": 1}
    assert document["split"] == ["up_proj", "down_proj"]
    assert document["stored_bytes"] == split.parts.weight_bytes
    assert document["rank_bytes"] < document["stored_bytes"] <= 2 * whole.parts.weight_bytes


def test_a_plan_serves_several_programs_and_a_model_that_is_one_module() -> None:
    plan = sharding_of("tp=2", {"*": "column"})
    assert plan is not None
    for _ in range(2):
        lower_program(capture(torch.nn.Linear(4, 6), (torch.randn(2, 4),)), "canonical", CompileOptions(sharding=plan))
        assert plan.axes[0].report.split == [("", "column")]
