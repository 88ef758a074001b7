"""Small models of many architectures, with random seeded weights: what a mesh may be asked to run.

Those of transformers are built from their configurations; a few that it lacks are written here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Inputs = tuple[torch.Tensor, ...]
Model = tuple[nn.Module, Inputs]

_SEED = 20261126
_VOCABULARY = 101
_COMMON: dict[str, int] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_TEXT = {**_COMMON, "vocab_size": _VOCABULARY}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_IMAGE = {**_COMMON, "image_size": 32, "patch_size": 8}
_WIDTHS = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
_BOTH_SIDES = {
    "vocab_size": _VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}

_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 16}),
    "mistral": ("Mistral", {**_GROUPED, "num_key_value_heads": 1, "sliding_window": 4}),
    "gemma": ("Gemma", {**_GROUPED, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2", {**_GROUPED, "head_dim": 16}),
    "phi": ("Phi", _TEXT),
    "phi3": ("Phi3", {**_GROUPED, "pad_token_id": 0}),
    "mixtral": ("Mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "bloom": ("Bloom", {"vocab_size": _VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "opt": ("OPT", {**_TEXT, "ffn_dim": 128, "max_position_embeddings": 32, "word_embed_proj_dim": 64}),
    "gpt_neox": ("GPTNeoX", _TEXT),
    "gptj": ("GPTJ", {"vocab_size": _VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    "falcon": ("Falcon", {"vocab_size": _VOCABULARY, **_COMMON}),
    "mpt": ("Mpt", {"vocab_size": _VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 32}),
    "mamba": ("Mamba", {"vocab_size": _VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "olmo": ("Olmo", _GROUPED),
    "stablelm": ("StableLm", _GROUPED),
    "starcoder2": ("Starcoder2", _GROUPED),
    "cohere": ("Cohere", _GROUPED),
}
_ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("Roberta", _TEXT),
    "distilbert": (
        "DistilBert",
        {"vocab_size": _VOCABULARY, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
    ),
    "deberta_v2": ("DebertaV2", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "albert": ("Albert", {**_TEXT, "embedding_size": 32}),
    "electra": ("Electra", {**_TEXT, "embedding_size": 32}),
    "xlnet": ("XLNet", {"vocab_size": _VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}),
}
_IMAGES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "deit": ("DeiT", 32, _IMAGE),
    "beit": ("Beit", 32, _IMAGE),
    "clip_vision": ("CLIPVision", 32, _IMAGE),
    "dinov2": ("Dinov2", 32, _IMAGE),
    "swin": (
        "Swin",
        32,
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": ("ConvNext", 64, _WIDTHS),
    "mobilevit": (
        "MobileViT",
        64,
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]},
    ),
    "segformer": ("Segformer", 64, {**_WIDTHS, "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 32}),
    "regnet": ("RegNet", 64, {**_WIDTHS, "embedding_size": 16, "groups_width": 8}),
    "efficientnet": (
        "EfficientNet",
        64,
        {"image_size": 64, "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
    ),
}


class _FirstOutput(nn.Module):
    """A model of transformers as a function of tensors: its logits, or the last hidden state."""

    def __init__(self, model: nn.Module, *names: str, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.options = options

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, values, strict=True)), **self.options)[0]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner, self.middle = _block(3, 16), _block(16, 32), _block(32, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.joined = _block(32, 16)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.down(image)
        coarse = self.middle(self.inner(nn.functional.max_pool2d(fine, 2)))
        return self.head(self.joined(torch.cat([fine, self.up(coarse)], 1)))


def _block(channels: int, made: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())


def _ids(length: int = 8) -> torch.Tensor:
    return torch.randint(1, _VOCABULARY, (2, length))


def _decoder(name: str) -> Model:
    family, options = _DECODERS[name]
    model = _of_transformers(f"{family}ForCausalLM", f"{family}Config", options)
    return _FirstOutput(model, "input_ids", use_cache=False), (_ids(),)


def _encoder(name: str) -> Model:
    family, options = _ENCODERS[name]
    return _FirstOutput(_of_transformers(f"{family}Model", f"{family}Config", options), "input_ids"), (_ids(),)


def _image(name: str) -> Model:
    family, size, options = _IMAGES[name]
    model = _of_transformers(f"{family}Model", f"{family}Config", options)
    return _FirstOutput(model, "pixel_values"), (torch.randn(2, 3, size, size),)


def _t5() -> Model:
    options = {"vocab_size": _VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    model = _of_transformers("T5ForConditionalGeneration", "T5Config", options)
    return _FirstOutput(model, "input_ids", "decoder_input_ids", use_cache=False), (_ids(), _ids(6))


def _bart() -> Model:
    model = _of_transformers("BartForConditionalGeneration", "BartConfig", _BOTH_SIDES)
    return _FirstOutput(model, "input_ids", "decoder_input_ids", use_cache=False), (_ids(), _ids(6))


def _whisper() -> Model:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 16}
    model = _of_transformers("WhisperModel", "WhisperConfig", {**_BOTH_SIDES, **tokens, **sizes})
    inputs = (torch.randn(2, 16, 40), _ids(6))
    return _FirstOutput(model, "input_features", "decoder_input_ids", use_cache=False), inputs


def _wav2vec2() -> Model:
    layers = {"conv_dim": [32, 32], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
    model = _of_transformers("Wav2Vec2Model", "Wav2Vec2Config", {**_COMMON, **layers, **positions})
    return _FirstOutput(model, "input_values"), (torch.randn(2, 800),)


def _transformer() -> Model:
    return nn.Transformer(64, 4, 2, 2, 128, batch_first=True), (torch.randn(2, 8, 64), torch.randn(2, 6, 64))


_OTHERS: dict[str, Callable[[], Model]] = {
    "t5": _t5,
    "bart": _bart,
    "whisper": _whisper,
    "wav2vec2": _wav2vec2,
    "lstm": lambda: (_Recurrent(), (_ids(),)),
    "unet": lambda: (_UNet(), (torch.randn(2, 3, 32, 32),)),
    "transformer": _transformer,
}
ARCHITECTURES: tuple[str, ...] = (*_DECODERS, *_ENCODERS, *_IMAGES, *_OTHERS)


def architecture(name: str) -> Model:
    """Returns a model of :data:`ARCHITECTURES` in eval mode, and inputs for it: a batch of two."""
    torch.manual_seed(_SEED)
    for table, make in ((_DECODERS, _decoder), (_ENCODERS, _encoder), (_IMAGES, _image)):
        if name in table:
            model, inputs = make(name)
            return model.eval(), inputs
    model, inputs = _OTHERS[name]()
    return model.eval(), inputs


def _of_transformers(model: str, config: str, options: dict[str, Any]) -> nn.Module:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**options))
