"""Reads PLAN.toml; every mistake in it is one line that names the table and the key."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from serve.cluster.plan import Deployment, Limits, Plan, ScalingTable, Table, TenantEntry, TlsFiles
from triton_batching.terminal import Mistake

T = TypeVar("T", bound=Table)
SEE = "serve/cluster/README.md shows a plan."
# What msgspec says, and what it says here.
PHRASES = (
    (r"Object missing required field `(\w+)`", r"\1 is missing"),
    (r"Expected `str` matching regex .*", "must be a name of a-z, 0-9, - and _"),
    (r"Expected `(\w+)`(?: \| null)?(?: of)? ([<>=]+) (\S+)", r"must be \2 \3"),
    (r"Expected `(.+)`, got `(.+)`", r"must be \1, and is \2"),
    (r"Expected `array` of length >= 1", "must name one at least"),
)
WORDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list"}


def read(path: Path) -> Plan:
    """The plan in the file; its paths are relative to the file's folder. Raises `Mistake`."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Mistake(f"{path}: cannot be read ({error.strerror}). {SEE}") from error
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path}: cannot be read as TOML ({error}). {SEE}") from error
    if "proxy" in content:
        raise Mistake(f"{path}: proxy is not known any more: the front door is Envoy. Remove the line.")
    _refuse_unknown(content, Plan, str(path))
    for key in ("deployment", "tenant"):
        for number, entry in enumerate(_tables(content, key, path), 1):
            name = entry.get("name", number) if isinstance(entry, dict) else number
            where = f"{path}: {key} {name}"
            if key == "deployment" and isinstance(entry, dict) and "scaling" in entry:
                _table(entry["scaling"], ScalingTable, f"{where}: scaling")
            _table(entry, Deployment if key == "deployment" else TenantEntry, where)
    for key, kind in (("limits", Limits), ("tls", TlsFiles)):
        if key in content:
            _table(content[key], kind, f"{path}: [{key}]")
    return _beside(path.resolve().parent, _table(content, Plan, str(path)))


def _tables(content: Mapping[str, Any], key: str, path: Path) -> Sequence[Any]:
    entries = content.get(key, [])
    if not isinstance(entries, list):
        raise Mistake(f"{path}: {key} is not a list of tables. Write [[{key}]] above each.")
    return entries


def _table(content: Any, kind: type[T], where: str) -> T:
    """The table as a value of `kind`."""
    _refuse_unknown(content, kind, where)
    try:
        return msgspec.convert(content, kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        key = re.sub(r"\[.*", "", place.strip("`.").rpartition(".")[2])
        raise Mistake(f"{where}: {f'{key} ' if key else ''}{_said(text)}. Correct it. {SEE}") from error


def _refuse_unknown(content: Any, kind: type[Table], where: str) -> None:
    """Raise `Mistake` for a key that `kind` does not have."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    if unknown := sorted(set(content if isinstance(content, dict) else ()) - known):
        nearest = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"Did you mean {nearest[0]}?" if nearest else f"Known: {', '.join(sorted(known))}."
        raise Mistake(f"{where}: {unknown[0]} is not known. {meant}")


def _path(kind: type[Path], value: object) -> Path:
    """The path that a text names: the only type here that msgspec does not know."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return kind(value)


def _said(text: str) -> str:
    """What msgspec found, in the words of a user."""
    matches = ((re.fullmatch(pattern, text), phrase) for pattern, phrase in PHRASES)
    phrase = next((match.expand(ours) for match, ours in matches if match), text)
    return re.sub(r"\b(str|int|float|bool|array)\b", lambda word: WORDS[word[0]], phrase)


def _beside(folder: Path, plan: Plan) -> Plan:
    """The plan with the paths that it names relative to `folder`."""
    tls = plan.tls and TlsFiles(certificate=folder / plan.tls.certificate, key=folder / plan.tls.key)
    tenants = tuple(msgspec.structs.replace(tenant, token_file=folder / tenant.token_file) for tenant in plan.tenant)
    return msgspec.structs.replace(plan, repository=folder / plan.repository, tls=tls, tenant=tenants)
