"""A model with real weights: sentences of mixed lengths through one artifact with symbolic batch and length."""

from __future__ import annotations

from tests.support.models import sentence_embeddings


def test_embeddings_are_those_of_eager() -> None:
    tools = sentence_embeddings()
    module, example = tools.encoder()
    compiled = tools.compile_encoder(module, example)
    texts = tools.sentences()
    assert len(texts) == 100
    assert len({tools.tokenize([text])[0].shape[1] for text in texts}) > 20, "lengths are mixed"
    eager = tools.embed(tools.run_eager(module), texts, 1)
    for batch in (1, 17):
        ours = tools.embed(lambda ids, mask: compiled.session.run(ids, mask)[0], texts, batch)
        assert tools.least_cosine(ours, eager) >= 0.999999
        assert tools.least_rank_correlation(ours, eager) >= 0.9999
    wrong = eager[::-1]
    assert tools.least_cosine(wrong, eager) < 0.9, "the measure tells embeddings apart"
    assert tools.least_rank_correlation(wrong, eager) < 0.9


def test_int8_keeps_the_ranking() -> None:
    tools = sentence_embeddings()
    module, example = tools.encoder()
    compiled = tools.quantize_encoder(module, example)
    assert sum(step.kind in ("integer_matmul", "matmul") for step in compiled.parts.manifest.steps) >= 36
    texts = tools.sentences()
    eager = tools.embed(tools.run_eager(module), texts, 1)
    ours = tools.embed(lambda ids, mask: compiled.session.run(ids, mask)[0], texts, 17)
    assert tools.rank_correlation(ours, eager) >= 0.99
    assert tools.rank_correlation(eager[::-1], eager) < 0.9
