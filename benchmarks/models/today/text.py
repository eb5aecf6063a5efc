"""Reading and writing: sentence encoders at several lengths, decoders that carry keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.spec import Inputs, Integers
from benchmarks.models.today.blocks import Attention, FeedForward, split_heads
from benchmarks.models.today.model import Model, today


class PostNormBlock(nn.Module):
    """BERT's block: LayerNorm behind each residual sum."""

    def __init__(self, attention: nn.Module, width: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.feed = attention, FeedForward(width, hidden)
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x, mask))
        output: torch.Tensor = self.feed_norm(x + self.feed(x))
        return output


class SentenceEncoder(Model):
    """A BERT pooled to one vector of length 1: the mean over the mask (MiniLM), or the first output (BGE)."""

    def __init__(self, length: int, width: int, heads: int, layers: int, tokens: int, pooling: str) -> None:
        super().__init__()
        self.length, self.tokens, self.pooling = length, tokens, pooling
        self.embedding, self.kinds = nn.Embedding(tokens, width), nn.Embedding(2, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(PostNormBlock(Attention(width, heads), width, 4 * width) for _ in range(layers))

    def inputs(self, batch: int) -> Inputs:
        shape = batch, self.length
        return {
            "input_ids": Integers(shape, self.tokens),
            "attention_mask": Integers(shape, 2),
            "token_type_ids": Integers(shape, 2),
        }

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        positions = self.positions(torch.arange(self.length, device=tokens.device))
        x = self.norm(self.embedding(tokens) + self.kinds(kinds) + positions)
        kept = mask.to(x.dtype)
        hidden = (1.0 - kept[:, None, None]) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, hidden)
        if self.pooling == "mean":
            pooled = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1e-9)
        else:
            pooled = x[:, 0]
        return functional.normalize(pooled)


class DisentangledAttention(nn.Module):
    """DeBERTa's attention: content on content, on relative positions, and relative positions on content."""

    near: torch.Tensor  # [1, heads, length, length]: the row of `relative` for each pair of places

    def __init__(self, width: int, heads: int, length: int, relative: nn.Parameter, span: int) -> None:
        super().__init__()
        self.heads, self.scale, self.relative = heads, math.sqrt(3 * width / heads), relative
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        place = torch.arange(length)
        near = (place[:, None] - place + span).clamp(0, 2 * span - 1)
        self.register_buffer("near", near.expand(1, heads, length, length).contiguous())

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        near, n = self.near.expand(x.shape[0], -1, -1, -1), self.heads
        q, k, v = (split_heads(layer(x), n) for layer in (self.query, self.key, self.value))
        place_q, place_k = (split_heads(layer(self.relative), n) for layer in (self.query, self.key))
        scores = q @ k.mT
        scores = scores + torch.gather(q @ place_k.mT, -1, near)
        scores = scores + torch.gather(k @ place_q.mT, -1, near).mT
        weights = functional.softmax((scores / self.scale).masked_fill(mask, torch.finfo(x.dtype).min), -1)
        output: torch.Tensor = self.output((weights @ v).transpose(1, 2).flatten(2))
        return output


class Deberta(Model):
    """A reranker of DeBERTa-v3's form: relative positions shared by the blocks, one score for the first token."""

    def __init__(self, length: int, width: int, heads: int, layers: int, tokens: int, span: int) -> None:
        super().__init__()
        self.length, self.tokens = length, tokens
        self.embedding, self.norm = nn.Embedding(tokens, width), nn.LayerNorm(width)
        relative = nn.Parameter(torch.randn(2 * span, width))
        self.blocks = nn.ModuleList(
            PostNormBlock(DisentangledAttention(width, heads, length, relative, span), width, 4 * width)
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def inputs(self, batch: int) -> Inputs:
        shape = batch, self.length
        return {"input_ids": Integers(shape, self.tokens), "attention_mask": Integers(shape, 2)}

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(tokens)) * mask[..., None]
        hidden = (mask[:, None, None] * mask[:, None, :, None]) == 0
        for block in self.blocks:
            x = block(x, hidden)
        output: torch.Tensor = self.head(x[:, 0])
        return output


class Decoder(Model):
    """One token of a decoder that gets keys and values of `past` tokens and gives them back with its own."""

    def __init__(self, layers: int, heads: int, head_width: int, past: int, tokens: int) -> None:
        super().__init__()
        self.layers, self.state, self.past, self.tokens = layers, (heads, past, head_width), past, tokens

    def inputs(self, batch: int) -> Inputs:
        shape = batch, *self.state
        states = {f"past_{kind}_{i}": shape for i in range(self.layers) for kind in ("key", "value")}
        return {"token": Integers((batch, 1), self.tokens), "position": Integers((batch, 1), self.past), **states}

    def outputs(self) -> tuple[str, ...]:
        return "logits", *(f"present_{kind}_{i}" for i in range(self.layers) for kind in ("key", "value"))


class Gpt2Block(nn.Module):
    """LayerNorm, attention with one projection for query, key and value, LayerNorm, feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.project, self.output = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = FeedForward(width, 4 * width, lambda: nn.GELU("tanh"))

    def forward(
        self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = self.project(self.norm(x)).chunk(3, -1)
        q, k, v = (split_heads(part, self.heads) for part in parts)
        keys, values = torch.cat([key, k], 2), torch.cat([value, v], 2)
        found = functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.output(found.transpose(1, 2).flatten(2))
        return x + self.feed(self.feed_norm(x)), keys, values


class Gpt2Step(Decoder):
    """One token of GPT-2. Full scale is DistilGPT-2: six blocks of 768."""

    def __init__(self, width: int, heads: int, layers: int, past: int, tokens: int) -> None:
        super().__init__(layers, heads, width // heads, past, tokens)
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, token: torch.Tensor, position: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, present = self.embedding(token) + self.positions(position), []
        for i, block in enumerate(self.blocks):
            x, *kept = block(x, past[2 * i], past[2 * i + 1])
            present += kept
        return self.norm(x) @ self.embedding.weight.T, *present


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaBlock(nn.Module):
    """RMSNorm, attention with rotary positions and shared keys, RMSNorm, gated feed-forward."""

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        self.norm, self.feed_norm = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.query, self.output = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.key, self.value = (nn.Linear(width, key_heads * width // heads, False) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(*s, False) for s in ((width, hidden), (width, hidden), (hidden, width))
        )

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(
        self,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        past: tuple[torch.Tensor, torch.Tensor],
        store: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        normed = self.norm(x)
        q = self.rotate(split_heads(self.query(normed), self.heads), *turn)
        k = self.rotate(split_heads(self.key(normed), self.key_heads), *turn)
        keys, values = store(past[0], k), store(past[1], split_heads(self.value(normed), self.key_heads))
        wide_keys, wide_values = (t.repeat_interleave(self.heads // self.key_heads, 1) for t in (keys, values))
        found = functional.scaled_dot_product_attention(q, wide_keys, wide_values, mask)
        x = x + self.output(found.transpose(1, 2).flatten(2))
        y = self.feed_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), keys, values


class LlamaStep(Decoder):
    """One token of a Llama. Full scale has SmolLM-135M's sizes, eight of its thirty blocks.

    Keys and values are appended, or written at the token's position of caches that keep their size (`static`).
    """

    frequencies: torch.Tensor

    def __init__(
        self, width: int, heads: int, key_heads: int, layers: int, hidden: int, past: int, tokens: int, static: bool
    ) -> None:
        super().__init__(layers, key_heads, width // heads, past, tokens)
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)
        self.static, half = static, width // heads // 2
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half))

    def forward(self, token: torch.Tensor, position: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        angles = (position[..., None] * self.frequencies).repeat(1, 1, 2)[:, None]
        mask = (torch.arange(self.past, device=position.device) <= position)[:, None, None] if self.static else None

        def store(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            return cache.index_copy(2, position[0], new) if self.static else torch.cat([cache, new], 2)

        x, present = self.embedding(token), []
        for i, block in enumerate(self.blocks):
            x, *kept = block(x, (angles.cos(), angles.sin()), (past[2 * i], past[2 * i + 1]), store, mask)
            present += kept
        return self.norm(x) @ self.embedding.weight.T, *present


class T5Block(nn.Module):
    """Attention with an added bias, and a feed-forward with ReLU, each behind an RMSNorm."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm, self.feed_norm = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.project, self.output = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
        self.feed = nn.Sequential(nn.Linear(width, hidden, False), nn.ReLU(), nn.Linear(hidden, width, False))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        parts = self.project(self.norm(x)).chunk(3, -1)
        q, k, v = (split_heads(part, self.heads) for part in parts)
        weights = functional.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale + bias, -1)
        x = x + self.output(torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2))
        output: torch.Tensor = x + self.feed(self.feed_norm(x))
        return output


class T5Encoder(Model):
    """T5's encoder: RMSNorm, attention with a bias by bucketed distance, by einsum. Full scale is efficient-tiny."""

    buckets: torch.Tensor

    def __init__(self, length: int, width: int, heads: int, layers: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.length, self.tokens = length, tokens
        self.embedding, self.bias = nn.Embedding(tokens, width), nn.Embedding(32, heads)
        place = torch.arange(length)
        distance = place - place[:, None]
        far = (8 + (distance.abs().clamp(min=1) / 8).log() / math.log(16) * 8).long().clamp(max=15)
        self.register_buffer("buckets", torch.where(distance.abs() < 8, distance.abs(), far) + 16 * (distance > 0))
        self.blocks = nn.ModuleList(T5Block(width, heads, hidden) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)

    def inputs(self, batch: int) -> Inputs:
        return {"input_ids": Integers((batch, self.length), self.tokens)}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, bias = self.embedding(tokens), self.bias(self.buckets).permute(2, 0, 1)
        for block in self.blocks:
            x = block(x, bias)
        output: torch.Tensor = self.norm(x)
        return output


MINILM = {"width": 384, "heads": 12, "layers": 6, "tokens": 30522, "pooling": "mean"}
MINILM_SMALL = {"width": 32, "heads": 4, "layers": 2, "tokens": 60, "pooling": "mean"}
GPT2 = {"width": 768, "heads": 12, "layers": 6, "tokens": 50257}
GPT2_SMALL = {"width": 32, "heads": 4, "layers": 2, "tokens": 60}
LLAMA = {"width": 576, "heads": 9, "key_heads": 3, "layers": 8, "hidden": 1536, "tokens": 49152, "static": False}
LLAMA_SMALL = {"width": 48, "heads": 6, "key_heads": 2, "layers": 2, "hidden": 64, "tokens": 60, "static": False}

MODELS = (
    *(
        today(
            f"minilm_{length}", f"MiniLM-L6, {length} tokens", SentenceEncoder,
            {**MINILM, "length": length}, {**MINILM_SMALL, "length": length // 4 + 7},
        )
        for length in (8, 32, 128)
    ),
    today(
        "minilm_32_torchscript", "MiniLM-L6, 32 tokens, TorchScript exporter", SentenceEncoder,
        {**MINILM, "length": 32}, {**MINILM_SMALL, "length": 9}, exporter="torchscript",
    ),
    *(
        today(
            f"bge_{length}", f"BGE-small, {length} tokens", SentenceEncoder,
            {**MINILM, "length": length, "layers": 12, "pooling": "first"},
            {**MINILM_SMALL, "length": length // 4 + 7, "pooling": "first"},
        )
        for length in (16, 64)
    ),
    today(
        "deberta_64", "DeBERTa reranker (xsmall, 6 of 12 blocks), 64 tokens", Deberta,
        {"length": 64, "width": 384, "heads": 6, "layers": 6, "tokens": 30522, "span": 256},
        {"length": 7, "width": 24, "heads": 3, "layers": 2, "tokens": 60, "span": 4},
    ),
    today(
        "t5_encoder", "T5's encoder (efficient-tiny), 32 tokens", T5Encoder,
        {"length": 32, "width": 256, "heads": 4, "layers": 4, "hidden": 1024, "tokens": 32128},
        {"length": 11, "width": 16, "heads": 2, "layers": 2, "hidden": 32, "tokens": 60},
    ),
    *(
        today(
            f"gpt2_{past}", f"DistilGPT-2, one token after {past}", Gpt2Step,
            {**GPT2, "past": past}, {**GPT2_SMALL, "past": past // 32 + 2},
        )
        for past in (64, 512)
    ),
    *(
        today(
            f"llama_{past}", f"Llama (8 of 30 blocks), one token after {past}", LlamaStep,
            {**LLAMA, "past": past}, {**LLAMA_SMALL, "past": past // 32 + 2},
        )
        for past in (32, 256, 1024)
    ),
    today(
        "llama_static_256", "Llama (8 of 30 blocks), one token in caches of 256", LlamaStep,
        {**LLAMA, "past": 256, "static": True}, {**LLAMA_SMALL, "past": 8, "static": True},
    ),
)  # fmt: skip
