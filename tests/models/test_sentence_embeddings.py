"""A model with real weights: sentences of mixed lengths through one artifact with symbolic batch and length."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from tests.support.models import sentence_embeddings


class Embedded(NamedTuple):
    """The model, example inputs, sentences, and their embeddings as eager computes them."""

    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    texts: list[str]
    eager: Any


@pytest.fixture(scope="module")
def embedded() -> Embedded:
    tools = sentence_embeddings()
    module, example = tools.encoder()
    texts = tools.sentences()
    return Embedded(module, example, texts, tools.embed(tools.run_eager(module), texts, 1))


def test_embeddings_are_those_of_eager(embedded: Embedded) -> None:
    tools, (module, example, texts, eager) = sentence_embeddings(), embedded
    compiled = tools.compile_encoder(module, example)
    assert len(texts) == 100
    assert len({tools.tokenize([text])[0].shape[1] for text in texts}) > 20, "lengths are mixed"
    for batch in (1, 17):
        ours = tools.embed(lambda ids, mask: compiled.session.run(ids, mask)[0], texts, batch)
        assert tools.least_cosine(ours, eager) >= 0.999999
        assert tools.least_rank_correlation(ours, eager) >= 0.9999
    wrong = eager[::-1]
    assert tools.least_cosine(wrong, eager) < 0.9, "the measure tells embeddings apart"
    assert tools.least_rank_correlation(wrong, eager) < 0.9


@pytest.mark.exhaustive
def test_int8_keeps_the_ranking(embedded: Embedded) -> None:
    """With the products in floats that ``auto`` chooses, given by name: the search would take minutes."""
    tools, (module, example, texts, eager) = sentence_embeddings(), embedded
    kept = ["layer.[0-3].output.dense", "layer.0.intermediate.dense", "layer.5.attention.self.value"]
    patterns = [f"bert.encoder.{name}" for name in [*kept, "layer.5.attention.output.dense"]]
    quantized = tools.quantize_encoder(module, example, smooth=0.7, keep_float=patterns)
    report = quantized.report
    assert report.passed
    assert len(report.kept) == 7
    assert report.products == 36
    steps = quantized.compiled.parts.program.steps
    assert sum(step.kind in ("integer_matmul", "matmul") for step in steps) >= 36
    ours = tools.embed(lambda ids, mask: quantized.compiled.session.run(ids, mask)[0], texts, 17)
    assert tools.rank_correlation(ours, eager) >= 0.999
    assert tools.least_rank_correlation(ours, eager) >= 0.99
    assert tools.rank_correlation(eager[::-1], eager) < 0.9
