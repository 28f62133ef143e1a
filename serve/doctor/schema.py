"""Fields and enum values of a text that Triton's ModelConfig does not have, with the nearest that it has."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serve.doctor.document import Document
from serve.doctor.finding import Edit
from serve.doctor.pbtxt import Field, Value

WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """A word at offset `at` that ModelConfig does not have; `fix` replaces it if only one other word fits."""

    at: int
    message: str
    fix: tuple[Edit, ...] = ()


def unknowns(document: Document) -> Iterator[Unknown]:
    """Every field and enum value of a config.pbtxt that ModelConfig does not have."""
    yield from _message(document, document.fields, ModelConfig.DESCRIPTOR)


def _message(document: Document, fields: tuple[Field, ...], descriptor: Descriptor) -> Iterator[Unknown]:
    for field in fields:
        definition = descriptor.fields_by_name.get(field.name)
        if definition is None:
            if WORD.fullmatch(field.name):  # else what stands there is no name: a value is missing before it
                yield _unknown_field(field, descriptor)
        elif definition.message_type is not None:
            for value in field.values:
                yield from _message(document, value.fields or (), definition.message_type)
        elif definition.enum_type is not None:
            yield from _enum(document, field.values, definition)


def _unknown_field(field: Field, descriptor: Descriptor) -> Unknown:
    names = list(descriptor.fields_by_name)
    place = "a model configuration" if descriptor is ModelConfig.DESCRIPTOR else descriptor.name
    return Unknown(
        at=field.start,
        message=f'"{field.name[:80]}" is not a field of {place}, so the server refuses the whole file with only '
        f'"failed to read text proto". {_advice(field.name, names)}',
    )


def _enum(document: Document, values: tuple[Value, ...], field: FieldDescriptor) -> Iterator[Unknown]:
    assert field.enum_type is not None
    names = list(field.enum_type.values_by_name)
    for value in values:
        word = document.slice(value)
        if word in names or word.lstrip("-").isdecimal():
            continue
        candidates = [name for name in names if name.endswith(f"_{word.strip(chr(34)).upper()}")]
        fix = (Edit(start=value.start, end=value.end, text=candidates[0]),) if len(candidates) == 1 else ()
        advice = f"Write {candidates[0]}." if fix else _advice(word, names)
        yield Unknown(
            at=value.start,
            message=f"{word[:80]} is not a value of {field.name}, so the server refuses the whole file with only "
            f'"failed to read text proto". {advice}',
            fix=fix,
        )


def _advice(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word.lower()[:80], names, n=1) or difflib.get_close_matches(
        word.upper()[:80], names, n=1
    )
    return f"Did you mean {near[0]}?" if near else f"It has: {', '.join(names)}."
