"""What the runner relies on when it verifies and copies the IR only after passes that changed it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from lowerkit.capture.capture import capture
from lowerkit.errors import PassError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import erase_dead
from lowerkit.pipeline import STAGES, PipelineOptions, run_passes, stage_passes
from tests.support.models import benchmark_models

MODELS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_that_reports_no_change_made_none(name: str) -> None:
    module, inputs = benchmark_models().tiny(name)
    program = capture(module, inputs)
    context = PassContext(weights=program.weights)
    for stage in STAGES[1:-1]:
        for one_pass in stage_passes(stage):
            before = program.module.operation.clone()
            if not one_pass.run(program.module, context):
                assert read_part(program.module.operation.clone()) == read_part(before), one_pass.name


def read_part(module: ir.OpView) -> str:
    """The text without what nothing reads: a pass may drop that without a word."""
    (main,) = module.operation.regions[0].blocks[0].operations
    erase_dead(main.operation.regions[0].blocks[0])
    return module.operation.get_asm(enable_debug_info=False)


class Idle(Pass):
    name: ClassVar[str] = "idle"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        return False


class Failing(Pass):
    name: ClassVar[str] = "failing"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        module.operation.attributes["half_done"] = ir.UnitAttr.get(module.context)
        raise ValueError("no reason")


def test_the_reproducer_of_a_pass_behind_an_idle_one_is_its_input(tmp_path: Path) -> None:
    module, inputs = benchmark_models().tiny("bert_base")
    program = capture(module, inputs)
    with pytest.raises(PassError, match="no reason"):
        run_passes(program, [Idle(), Failing()], PassContext(weights=program.weights), PipelineOptions(None, tmp_path))
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("lowerkit-reproducer-failing-")
    text = file.read_text()
    assert "torch.aten.embedding" in text
    assert "half_done" not in text
