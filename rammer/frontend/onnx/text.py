"""Compute with strings by their codes: equal strings have equal numbers, so devices can compare, look up and move them.

Known as: dictionary encoding. A code is a digest of the string, so that a caller's strings get theirs before the model
is imported. Two strings of one code are refused where they meet.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from rammer.errors import InputError, ModelError
from rammer.ir.tensor import Array

# operators that only compare, look up or move elements
_OPS = """
    ArrayFeatureExtractor CategoryMapper Compress Concat Equal Expand Flatten Gather GatherElements GatherND Identity
    LabelEncoder OneHotEncoder Reshape Scatter ScatterElements ScatterND Shape Size Slice Split Squeeze Tile Transpose
    Unsqueeze Where
"""
TEXT_OPS = frozenset(_OPS.split())


def encode(texts: Any, words: MutableMapping[int, str]) -> Array:
    """Return the codes of an array of strings, and add them to `words`. Raises InputError for anything but strings."""
    given = np.asarray(texts, object)
    codes = np.empty(given.shape, np.int64)
    for place, text in enumerate(given.ravel()):
        if isinstance(text, bytes):
            text = text.decode(errors="surrogateescape")
        if not isinstance(text, str):
            raise InputError(f"{text!r} is a {type(text).__name__}", hint="an array of strings is expected")
        digest = blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
        code = int.from_bytes(digest, "little", signed=True)
        if words.setdefault(code, text) != text:
            raise InputError(f"{text!r} and {words[code]!r} have the same code", hint="rename one of them")
        codes.flat[place] = code
    return codes


def codes_of(tensor: TensorProto, words: MutableMapping[int, str]) -> Array:
    """Return the codes of a message's strings, and add them to `words`. Raises ModelError for inconsistent data."""
    shape, texts = tuple(tensor.dims), list(tensor.string_data)
    if any(d < 0 for d in shape) or prod(shape) != len(texts):
        raise ModelError(f"tensor {tensor.name!r} has {len(texts)} strings; its shape is {list(shape)[:20]}")
    return encode(texts, words).reshape(shape)


def decode(codes: Array, words: Mapping[int, str]) -> Array:
    """Return the strings that have these codes, as an array of objects."""
    texts = np.empty(codes.size, object)
    texts[:] = [words[code] for code in codes.ravel().tolist()]
    return texts.reshape(codes.shape)
