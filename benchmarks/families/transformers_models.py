"""Make small networks of each architecture of transformers by torch.onnx.export, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModel, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.families.__main__ import Made
from benchmarks.families.exported import exported

TEXT = """
    albert bert big_bird bloom camembert canine codegen cohere convbert ctrl data2vec-text deberta deberta-v2
    distilbert electra ernie esm falcon flaubert fnet funnel gemma gemma2 glm gpt2 gpt_bigcode gpt_neo gpt_neox
    gptj granite ibert llama longformer luke megatron-bert mistral mobilebert modernbert mpnet mpt nemotron
    nystromformer olmo olmo2 openai-gpt opt phi phi3 qwen2 qwen3 rembert roberta roberta-prelayernorm roc_bert
    roformer smollm3 splinter squeezebert stablelm starcoder2 xglm xlm xlm-roberta xlnet xmod yoso
"""
VISION = """
    beit bit convnext convnextv2 cvt data2vec-vision deit dinov2 efficientnet focalnet glpn hiera levit
    mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer swiftformer
    swin swinv2 vit vit_mae vit_msn yolos
"""
SOUND = """
    audio-spectrogram-transformer hubert sew unispeech wav2vec2 wavlm
"""
KINDS = {name: kind for kind, names in (("text", TEXT), ("vision", VISION), ("sound", SOUND)) for name in names.split()}
SMALL = {
    "vocab_size": 120,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "image_size": 64,
    "pad_token_id": 0,
    "embedding_size": 64,
}
ORDINARY = SMALL | {
    "vocab_size": 8192,
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "head_dim": 64,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "image_size": 224,
    "embedding_size": 384,
}
OTHERS: dict[str, dict[str, Any]] = {  # what some architectures need besides, or instead
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "esm": {"vocab_size": 120},
    "falcon": {"head_dim": None},
    "funnel": {"num_hidden_layers": None, "block_sizes": [1, 1], "block_repeats": [1, 1]},
}


class _First(torch.nn.Module):
    """A network of which only the first result counts."""

    def __init__(self, network: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, x: torch.Tensor) -> Any:
        """Return the first result."""
        return self.network(**{self.name: x}, return_dict=False)[0]


def _config(name: str, ordinary: bool) -> PretrainedConfig:
    config = CONFIG_MAPPING[name]()
    for key, value in {**(ORDINARY if ordinary else SMALL), **OTHERS.get(name, {})}.items():
        if value is not None and (key in OTHERS.get(name, {}) or isinstance(getattr(config, key, None), int)):
            setattr(config, key, value)
    for key in ("use_cache", "output_attentions"):
        if hasattr(config, key):
            setattr(config, key, False)
    config._attn_implementation = "eager"
    return config


def network(name: str, ordinary: bool = False) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return a network and its input."""
    torch.manual_seed(0)
    config = _config(name, ordinary)
    made = AutoModel.from_config(config).eval()
    kind = KINDS[name]
    if kind == "text":
        rows, tokens = (1, 128) if ordinary else (2, 28)
        return _First(made, "input_ids").eval(), torch.arange(rows * tokens).reshape(rows, tokens) % 100 + 3
    if kind == "vision":
        side = getattr(config, "image_size", 64)
        return _First(made, "pixel_values").eval(), torch.rand(1, 3, side, side)
    return _First(made, "input_values").eval(), torch.randn(1, 16000 if ordinary else 4000)


def _made(name: str, ordinary: bool) -> Made:
    made, x = network(name, ordinary)
    return exported(made, (x,), ("x",))


def models(ordinary: bool = False) -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for name in KINDS:
        yield name, lambda n=name: _made(n, ordinary)
