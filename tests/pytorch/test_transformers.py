"""Small configurations of transformers' architectures, with seeded weights, beside eager PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: see CONTRIBUTING.md")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

import rammer  # noqa: E402
from tests.pytorch.eager import FAST, compiled, largest_difference  # noqa: E402

WORDS, LENGTH = 211, 19
TEXT = {"vocab_size": WORDS, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
ENCODER = {**TEXT, "intermediate_size": 80, "max_position_embeddings": 64}
GROUPED = {**ENCODER, "num_attention_heads": 6, "num_key_value_heads": 2, "use_cache": False}
IMAGE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80, "image_size": 32}
T5 = {"vocab_size": WORDS, "d_model": 48, "d_kv": 16, "d_ff": 80, "num_layers": 2, "num_heads": 3, "use_cache": False}
GPT2 = {"vocab_size": WORDS, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3, "use_cache": False}
WHISPER_SIDES = {"layers": 2, "attention_heads": 3, "ffn_dim": 80}
WHISPER = {"vocab_size": WORDS, "d_model": 48, "use_cache": False, "num_mel_bins": 20, "pad_token_id": 0}
WHISPER |= {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in WHISPER_SIDES.items()}
WHISPER |= {"max_source_positions": 30, "max_target_positions": 64}
ALBERT = {**ENCODER, "embedding_size": 16}
DISTIL = {"vocab_size": WORDS, "dim": 48, "n_layers": 2, "n_heads": 3, "hidden_dim": 80, "max_position_embeddings": 64}

# architecture: its configuration, and its inputs: words, a mask that hides the last ones, an image, sound
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "Bert": (ENCODER, ("input_ids", "attention_mask")),
    "Roberta": (ENCODER, ("input_ids", "attention_mask")),
    "DistilBert": (DISTIL, ("input_ids", "attention_mask")),
    "Albert": (ALBERT, ("input_ids", "attention_mask")),
    "Electra": ({**ENCODER, "embedding_size": 32}, ("input_ids", "attention_mask")),
    "GPT2": (GPT2, ("input_ids",)),
    "Llama": (GROUPED, ("input_ids",)),
    "Qwen2": (GROUPED, ("input_ids",)),
    "T5": (T5, ("input_ids", "attention_mask", "decoder_input_ids")),
    "Whisper": (WHISPER, ("input_features", "decoder_input_ids")),
    "ViT": (IMAGE | {"patch_size": 8}, ("pixel_values",)),
    "ConvNext": ({"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]}, ("pixel_values",)),
}


def model(name: str) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**MODELS[name][0])).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # biases and scales begin as zeros and ones: nobody would miss them
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


def inputs(name: str, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    made = {
        "input_ids": torch.randint(5, WORDS, (2, LENGTH), generator=generator),
        "decoder_input_ids": torch.randint(5, WORDS, (2, 7), generator=generator),
        "attention_mask": (torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 6]])).long(),
        "pixel_values": torch.randn(2, 3, 32, 32, generator=generator),
        "input_features": torch.randn(2, 20, 60, generator=generator),
    }
    return {key: made[key] for key in MODELS[name][1]}


def wanted(module: Any, given: dict[str, Any]) -> Any:
    return module(**given, return_dict=True)[0]


@pytest.mark.parametrize("name", MODELS)
def test_compiled(name: str) -> None:
    """By torch.compile, of which nothing falls back."""
    module = model(name)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", rammer.FallbackWarning)
        run = compiled(module)
        outputs = [wanted(module, inputs(name, seed)) for seed in (1, 2)]
        assert largest_difference(*outputs) > 0.1 * float(outputs[0].abs().max())
        for seed, output in zip((1, 2), outputs, strict=True):
            found = wanted(run, inputs(name, seed))
            assert largest_difference(found, output) < 1e-4 * float(output.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_imported(name: str) -> None:
    """By rammer.from_torch."""
    module, given = model(name), inputs(name, 1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output = wanted(module, given)
        with rammer.compile(rammer.from_torch(module, given), **FAST) as program:  # type: ignore[arg-type]
            for seed in (1, 2):
                given = inputs(name, seed)
                found = program.run(given)[program.outputs[0].name]
                output = wanted(module, given)
                assert largest_difference(torch.from_dlpack(found), output) < 1e-4 * float(output.abs().max())
