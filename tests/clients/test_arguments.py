"""What a client says of arguments that cannot be right, before anything is sent: tests/golden/client_*.txt."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import certificates
import numpy as np
import pytest
from grpc_server import GrpcServer

from clients import AsyncModel, ClientError, Model, Tls

HALF = "a\ud800b"
"""Half of a character: no UTF-8 has it."""
ADDRESSES = (
    *("", ":8001", "localhost:65536", "localhost:８００１", "localhost:8001/", "ftp://localhost:8001"),  # noqa: RUF001
    *("https://user:word@localhost:8000", "dns://localhost:8001", "localhost:8001\n", "a..b:8001", "a:8001;b:8001"),
    *("a:8001,,b:8001", "a:8001,", ",", "a:8001, A:8001", "grpc://a:8001,a:8001", "grpc://a:8001,http://b:8000"),
    *("a:8001,grpcs://b:8001", "dns:///a:8001,b:8001", "a:8001,dns:///b:8001", "a:8001,b", "http://a:8000,http//b:80"),
)
HEADERS: tuple[Any, ...] = (
    *({"": "x"}, {"a:b": "x"}, {"ä": "x"}, {"a": "x\r\nb: y"}, {"a": b"x"}, {"A": "x", "a": "y"}, {"host": "x"}),
    *({"grpc-timeout": "1S"}, {"key-bin": "x"}, {"Content-Length": "3"}, {"a": "x" * (8 << 10)}),
)
OPTIONS: tuple[dict[str, Any], ...] = (
    *({"url": url} for url in ADDRESSES),
    *({"headers": headers} for headers in HEADERS),
    {"url": "grpc://a:8001,b:8001", "transport": "http"},
    {"url": "https://localhost:8000", "transport": "grpc"},
    {"url": "grpcs://localhost:8001", "transport": "http"},
    {"url": "grpc://localhost:8001", "tls": Tls()},
    {"url": "ipv4:127.0.0.1:1,127.0.0.1:2", "transport": "http"},
    {"url": "http://localhost:8000,https://localhost:8000"},
    {"url": "dns:///absent.invalid:8001"},
    *({"transport": transport} for transport in ("htp", None, 3)),
    *({"hooks": {event: functions}} for event, functions in (("requests", []), ("request", [3]), ("request", None))),
    *({"name": name, "url": "localhost:1"} for name in (HALF, 5, "\0")),
    {"version": HALF, "url": "localhost:1"},
    {"timeout_s": math.nan},
)
CALLS: tuple[dict[str, Any], ...] = (
    *({"priority": priority} for priority in (-1, 1 << 64, 10**5000, 1.5)),
    *({"timeout_s": timeout_s} for timeout_s in (math.nan, 0, -math.inf, "5")),
    *({"request_id": request_id} for request_id in (HALF, "a\0b", 5)),
    *({"parameters": {"a": value}} for value in (1 << 63, -(1 << 63) - 1, HALF, None, [1], np.float32(1))),
    *({"parameters": parameters} for parameters in ({HALF: 1}, {5: 1}, [1])),
)


def said(attempts: Sequence[tuple[dict[str, Any], Callable[[], Any]]]) -> str:
    """What each attempt with these arguments raises, a line each."""
    lines = []
    for arguments, attempt in attempts:
        with pytest.raises(ClientError) as raised:
            attempt()
        lines.append(f"{shown(arguments)}\n    {type(raised.value).__name__}: {raised.value}")
    return "\n".join(lines)


def shown(arguments: dict[str, Any]) -> str:
    """Arguments as they are written."""
    try:
        text = ", ".join(f"{name}={value!a}" for name, value in arguments.items())
    except ValueError:
        text = f"{next(iter(arguments))}=(thousands of digits)"
    return text if len(text) < 200 else f"{text[:40]}..."


@pytest.mark.slow
def test_wrong_options_are_told(golden: Any) -> None:
    async def enter(options: dict[str, Any]) -> None:
        async with AsyncModel(**options):
            raise AssertionError

    both = [({"name": "m"} | options, options) for options in OPTIONS]
    text = said([(options, lambda whole=whole: Model(**whole)) for whole, options in both])  # type: ignore[misc]
    golden("client_options", text, masks={r"\(\[Errno -\d\].*?\)": "(the resolver's words)"})
    # AsyncModel says the same.
    assert text == said([(options, lambda whole=whole: asyncio.run(enter(whole))) for whole, options in both])  # type: ignore[misc]


def test_wrong_terms_of_a_call_are_told(answering: GrpcServer, golden: Any) -> None:
    row = np.ones((1, 1), np.float32)
    with Model("m", url=answering.url, transport="grpc") as model:
        text = said([(terms, lambda terms=terms: model.predict(row, **terms)) for terms in CALLS])  # type: ignore[misc]
    golden("client_calls", text)
    assert "ModelInfer" not in answering.asked


@pytest.mark.slow
def test_wrong_files_for_tls_are_told(tmp_path: Path, golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.make(tmp_path)
    (tmp_path / "text.pem").write_text("no certificate")
    monkeypatch.chdir(tmp_path)
    wrong: tuple[dict[str, Any], ...] = (
        {"ca": "absent.pem"},
        {"ca": "text.pem"},
        {"certificate": "client.pem"},
        {"certificate": "client.pem", "key": "other.key"},
    )
    golden("client_tls", said([(options, lambda options=options: Tls(**options)) for options in wrong]))  # type: ignore[misc]
