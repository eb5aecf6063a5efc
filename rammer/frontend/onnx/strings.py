"""Check a model's strings. Protobuf accepts any bytes for a string, and returns those that are not UTF-8 as bytes."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from onnx import ModelProto

from rammer.errors import ModelError, shown

_DESCRIBE = frozenset({"doc_string", "metadata_props", "producer_name", "producer_version"})  # not checked
_Where: TypeAlias = "tuple[_Where | None, str, int | None]"  # the message around it, the field, and its number there


def require_utf8(model: ModelProto) -> None:
    """Raise ModelError, naming the field, for a name in the model that is not UTF-8."""
    waiting: list[tuple[Any, _Where | None]] = [(model, None)]
    while waiting:  # no recursion: messages may be nested deeper than Python's stack
        message, where = waiting.pop()
        for field, repeated, is_message in _fields(message.DESCRIPTOR):
            if not repeated and is_message and not message.HasField(field):
                continue
            value = getattr(message, field)
            if is_message:
                waiting += (
                    [(part, (where, field, n)) for n, part in enumerate(value)]
                    if repeated
                    else [(value, (where, field, None))]
                )
            elif bytes in map(type, value if repeated else (value,)):
                number = next(n for n, part in enumerate(value) if type(part) is bytes) if repeated else None
                raise _refusal((where, field, number), value[number] if repeated else value)


@cache
def _fields(descriptor: Any) -> tuple[tuple[str, bool, bool], ...]:
    """Return a message's fields that are strings or messages: (name, is repeated, is a message)."""
    fields = [f for f in descriptor.fields if f.name not in _DESCRIBE and f.type in (f.TYPE_STRING, f.TYPE_MESSAGE)]
    return tuple((f.name, _is_repeated(f), f.type == f.TYPE_MESSAGE) for f in fields)


def _is_repeated(field: Any) -> bool:
    """Check whether a field is repeated. Protobuf 6.31 replaced `label` by `is_repeated`."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _refusal(where: _Where | None, value: bytes) -> ModelError:
    parts = []
    while where is not None:
        where, field, number = where
        parts.append(field if number is None else f"{field}[{number}]")
    return ModelError(
        f"{'.'.join(reversed(parts))} is not UTF-8: '{shown(value)}'", hint="the standard asks for UTF-8: write it anew"
    )
