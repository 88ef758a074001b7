"""`lowerkit plan`: meshes for numbers of devices, refusals that say why, the smallest mesh that fits, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.unit.cli.conftest import Outcome, RunCommand

ROOT = Path(__file__).resolve().parents[3]
MODEL = f"{ROOT}/docs/distributed/llama405b.py:tiny_prefill"
PLAN = {
    "*.[qkv]_proj": "column", "*.o_proj": "row", "*.gate_proj": "column", "*.up_proj": "column", "*.down_proj": "row",
    "*.embed_tokens": "vocabulary", "*.lm_head": "vocabulary",
}  # fmt: skip


def document(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    assert outcome.code == code, outcome.err
    return json.loads(outcome.out)


def test_each_number_of_devices_gets_a_mesh(lowerkit_command: RunCommand, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    arguments = ["plan", MODEL, "--meta", "--devices", "1,2", "--memory", "150kB", "--timeline", picture]
    facts = document(lowerkit_command(*arguments, "--json"))
    one, two = facts["meshes"]
    assert (one["devices"], one["fits"], one["plan"]) == (1, False, None)
    assert (two["devices"], two["fits"]) == (2, True)
    assert two["rank_bytes"] <= 150_000 < one["rank_bytes"]
    assert facts["smallest"] == two
    assert one["collectives"] == [] and two["collectives"]
    parts = {name: size for name, size in two["memory"].items() if name != "communication"}
    assert sum(parts.values()) == two["rank_bytes"]
    assert two["seconds"]["step"] >= two["seconds"]["compute"] > 0
    root = ElementTree.parse(picture).getroot()
    bars = root.findall(".//{http://www.w3.org/2000/svg}title")
    assert bars and "predicted" in "".join(root.itertext())


def test_the_table_names_meshes_and_collectives(lowerkit_command: RunCommand) -> None:
    shown = lowerkit_command(
        "plan", MODEL, "--meta", "--mesh", "tp=2", "--link", "1MB/s,2ms", "--link", "tp=450GB/s,2us"
    )
    assert shown.code == 0, shown.err
    row = next(line.split() for line in shown.out.splitlines() if line.split()[1:2] == ["tp=2"])
    assert row[0] == "2" and "yes" in row
    assert any(line.split()[:3] == ["tp=2", "all_reduce", "tp"] for line in shown.out.splitlines())
    assert "links of 1 MB/s, 2 ms; links of tp of 450 GB/s, 2 us" in shown.out
    assert "the smallest mesh that fits: tp=1 (1 device)" in shown.out


def test_a_plan_of_the_user_is_planned(lowerkit_command: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    facts = document(lowerkit_command("plan", MODEL, "--meta", "--mesh", "tp=2", "--shard", path, "--json"))
    (mesh,) = facts["meshes"]
    assert mesh["plan"] == {"tp": PLAN}
    assert {each["axis"] for each in mesh["collectives"]} == {"tp"}


def test_the_plan_is_written_for_shard(lowerkit_command: RunCommand, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    first = lowerkit_command("plan", MODEL, "--meta", "--mesh", "pp=2,tp=2", "--plan-out", path, "--json")
    (chosen,) = document(first)["meshes"]
    assert json.loads(path.read_text()) == chosen["plan"]
    again = lowerkit_command("plan", MODEL, "--meta", "--mesh", "pp=2,tp=2", "--shard", path, "--json")
    assert document(again)["meshes"] == [chosen]
    alone = lowerkit_command("plan", MODEL, "--meta", "--mesh", "tp=1", "--plan-out", tmp_path / "none.json")
    assert "error[LK1011]" in alone.err and not (tmp_path / "none.json").exists()


def test_what_does_not_fit_is_refused_with_the_part_and_the_smallest_mesh(lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("plan", MODEL, "--meta", "--mesh", "tp=1", "--memory", "150kB")
    assert outcome.code == 7
    assert "error[LK7006]" in outcome.err and "does not fit on tp=1" in outcome.err
    assert "weights take" in outcome.err and "activations: " in outcome.err
    assert "the smallest mesh that fits: " in outcome.err and "(2 devices)" in outcome.err
    facts = document(lowerkit_command("plan", MODEL, "--meta", "--mesh", "tp=1", "--memory", "150kB", "--json"), 7)
    assert not facts["meshes"][0]["fits"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--memory", "80"), "LK1009", "--memory is '80', without a unit"),
        (("--flops", "fast"), "LK1009", "--flops is 'fast', no number"),
        (("--link", "450GB/s,2us", "--link", "1GB/s,2us"), "LK1009", "--link is given twice for all axes"),
        (("--link", "missing.json"), "LK1001", "missing.json cannot be read"),
        (("--devices", "0"), "LK1009", "--devices is '0'"),
        (("--devices", "2", "--mesh", "tp=2"), "LK1004", "--devices has no effect with --mesh"),
        (("--shard", "plan.json"), "LK1011", "no mesh"),
    ],
)
def test_options_that_are_wrong_are_refused_before_the_model_is_captured(
    arguments: tuple[str, ...], code: str, text: str, lowerkit_command: RunCommand
) -> None:
    outcome = lowerkit_command("plan", "nowhere.py:model", "--meta", *arguments)
    assert outcome.code in (2, 3)
    assert f"error[{code}]" in outcome.err and text in outcome.err
