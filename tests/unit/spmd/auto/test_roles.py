"""Roles: modules with one task in each layer, and patterns that name them and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lowerkit.dialect.context import parse_module
from lowerkit.passes.shard.plan import PlanEntry
from lowerkit.program.weights import WeightStore
from lowerkit.spmd.auto.roles import Role, roles_of
from lowerkit.spmd.auto.shorten import Counts


def roles(modules: Mapping[str, int], counts: Counts | None = None) -> list[Role]:
    """The roles of a chain of products: path of a module -> its outputs."""
    store, lines, width, value = WeightStore(), list[str](), 4, "x"
    for number, (path, outputs) in enumerate(modules.items()):
        store.declare(f"{path}.weight", "f32", (width, outputs))
        kinds = f"(tensor<2x{width}xf32>, tensor<{width}x{outputs}xf32>) -> tensor<2x{outputs}xf32>"
        lines.append(f'%w{number} = "lk.weight"() {{symbol = "{path}.weight"}} : () -> tensor<{width}x{outputs}xf32>')
        lines.append(
            f'%v{number} = "lk.matmul"(%{value}, %w{number}) {{accumulate = f32, transpose_lhs = false, '
            f'transpose_rhs = false}} : {kinds} loc("mm@{path}")'
        )
        width, value = outputs, f"v{number}"
    body = "\n".join(lines)
    kind = f"tensor<2x{width}xf32>"
    text = f"func.func @main(%x: tensor<2x4xf32>) -> {kind} {{\n{body}\nreturn %{value} : {kind}\n}}"
    return roles_of(parse_module(text), store, counts or Counts())


def patterns(found: list[Role]) -> list[tuple[str, ...]]:
    return [role.patterns for role in found]


def test_layers_share_roles_with_short_patterns() -> None:
    found = roles({f"net.layers.{layer}.{name}": size for layer in (0, 1) for name, size in (("up", 8), ("down", 4))})
    assert patterns(found) == [("*.up",), ("*.down",)]
    assert found[0].members == ("net.layers.0.up", "net.layers.1.up")


def test_a_list_of_products_is_one_role() -> None:
    assert patterns(roles({f"experts.{number}": 4 for number in range(3)})) == [("experts.*",)]
    assert patterns(roles({"steps.0": 8, "steps.1": 4})) == [("steps.0",), ("steps.1",)]


def test_a_number_at_the_end_is_written_out_where_others_are_missing() -> None:
    found = roles({f"layers.{layer}.mlp.{step}": 4 for layer in (0, 1) for step in (0, 2)})
    assert patterns(found) == [("*.mlp.0",), ("*.mlp.2",)]


def test_one_name_at_two_depths() -> None:
    found = roles({f"layer.{layer}.{name}": 4 for layer in (0, 1) for name in ("attention.out.dense", "out.dense")})
    assert patterns(found) == [("*.attention.out.dense",), ("layer.*.out.dense",)]
    assert [role.wide for role in found] == [False, True]


def test_numbers_of_different_tasks_are_written_out() -> None:
    sizes = {(0, 0): 4, (0, 1): 8, (1, 0): 4, (1, 1): 8}
    found = roles({f"stage.{stage}.step.{step}.conv": size for (stage, step), size in sizes.items()})
    assert patterns(found) == [("*.step.0.conv",), ("*.step.1.conv",)]


def test_patterns_name_the_layers_that_were_left_out() -> None:
    counts = Counts({"layers.1": 3}, {"layers.2": "layers.1", "layers.3": "layers.1"})
    same = roles({f"layers.{layer}.up": 8 for layer in (0, 1, 4)}, counts)
    assert patterns(same) == [("*.up",)]
    apart = roles({"layers.0.up": 4, "layers.1.up": 8, "layers.4.up": 6}, counts)
    assert patterns(apart)[1] == ("layers.1.up", "layers.2.up", "layers.3.up")


@pytest.mark.parametrize(
    "paths", [["a.0.b", "a.1.b", "c.a.0.b"], ["up", "x.up"], ["m.0.q.w", "m.1.q.w", "m.0.w", "m.1.w"]]
)
def test_each_module_is_named_by_its_own_role_first(paths: list[str]) -> None:
    found = roles(dict.fromkeys(paths, 4))
    entries = [(PlanEntry(pattern, "column"), role) for role in found if not role.wide for pattern in role.patterns]
    entries += [(PlanEntry(pattern, "column"), role) for role in found if role.wide for pattern in role.patterns]
    for role in found:
        for path in role.members:
            assert next(own for entry, own in entries if entry.names(path)) == role
