"""The live page's server: who may read, and what it sends."""

import http.client
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from watching import metrics, reading

from perf.watch import web
from perf.watch.live import Live
from perf.watch.reading import Reading
from tests.perf.watch.test_stream import add, live

SECRET = "a-token-of-this-test"


@pytest.fixture
def servers() -> Iterator[Live]:
    watched = live("a:1")
    add(watched, reading(100.0))
    watched.readings = 1
    yield watched
    with watched._changed:
        watched.ended = True
        watched._changed.notify_all()


def get(address: str, path: str = "/", **headers: str) -> http.client.HTTPResponse:
    host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


def events(answer: http.client.HTTPResponse, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        line = answer.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            found.append(json.loads(line.removeprefix(b"data: ")))
    return found


@pytest.mark.slow
def test_loopback_needs_no_token_and_other_sites_cannot_read_it(servers: Live) -> None:
    with web.serving(servers, "127.0.0.1", 0, web.token("127.0.0.1")) as address:
        answer = get(address)
        assert answer.status == 200
        assert b"Live: Triton" in answer.read()
        assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
        # A name of another site that points here, and no name.
        for host in ("evil.example:8003", "["):
            for path in ("/", "/events"):
                assert get(address, path, Host=host).status == 403
        assert get(address, "/etc/passwd").status == 404


@pytest.mark.slow
def test_pages_of_other_sites_take_no_place(servers: Live) -> None:
    """A browser says who asks; a link on another site may open the page."""
    with web.serving(servers, "127.0.0.1", 0, "") as address:
        for site in ("cross-site", "same-site"):
            for path, mode in (("/events", "cors"), ("/events", "no-cors"), ("/", "no-cors")):
                assert get(address, path, Sec_Fetch_Site=site, Sec_Fetch_Mode=mode).status == 403
            assert get(address, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate").status == 200
        own = get(address, "/events", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")
        assert len(events(own, 1)) == 1
        own.close()


@pytest.mark.slow
def test_only_those_who_show_the_token_may_read(servers: Live) -> None:
    with web.serving(servers, "127.0.0.1", 0, SECRET) as address:
        assert address.endswith(f"/?token={SECRET}")
        refused: list[dict[str, str]] = [{}, {"Authorization": "Bearer no"}, {"Cookie": "triton-batching-watch=no"}]
        for headers in refused:
            for path in ("/", "/events", "/?token=no", "/?token=", f"/?token={SECRET}x", "/?token=%C3%A4"):
                answer = get(address, path, **headers)
                assert answer.status == 403, (path, headers)
                assert SECRET.encode() not in answer.read()
        assert get(address, Authorization=f"Bearer {SECRET}").status == 200
        shown = get(address, f"/?token={SECRET}")
        cookie = str(shown.getheader("Set-Cookie"))
        assert (shown.status, shown.getheader("Location")) == (303, "/")
        assert "HttpOnly; SameSite=Lax" in cookie
        assert get(address, Cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("token", ["a&b=c#d", 'a"b\\c;d', "a b/c?d%25", "schlüssel"])
def test_any_token_opens_the_page_by_the_printed_address(servers: Live, token: str) -> None:
    with web.serving(servers, "127.0.0.1", 0, token) as address:
        place = urlsplit(address)
        shown = get(address, f"{place.path}?{place.query}")
        assert (shown.status, place.fragment) == (303, "")
        assert get(address, Cookie=str(shown.getheader("Set-Cookie")).partition(";")[0]).status == 200
        assert get(address, Cookie="no").status == 403


def tell(servers: Live, *readings: Reading) -> None:
    """Add a reading of each server, and wake the pages."""
    with servers._changed:
        add(servers, *readings)


@pytest.mark.slow
def test_a_stream_has_the_state_and_then_each_reading(servers: Live) -> None:
    with web.serving(servers, "127.0.0.1", 0, "") as address:
        answer = get(address, "/events?span=3600&model=m&server=a:1")
        assert answer.getheader("Content-Type") == "text/event-stream"
        (first,) = events(answer, 1)
        assert (first["whole"], first["end"] - first["begin"]) == (True, 3_600_000)
        for at_s in (101.0, 102.0):
            tell(servers, reading(at_s, *[2] * int(at_s - 100)))
            (event,) = events(answer, 1)
            assert (event["whole"], event["end"]) == (False, 1000 * at_s)
            rows = [row for row in event["figures"]["rates"] if row.get("line") == "rows"]
            assert rows[-1]["at"] == 1000 * at_s
        answer.close()


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_no_numbers_end_no_stream(servers: Live, value: float) -> None:
    """JSON has no such numbers, and a model may set its gauges to anything."""
    page = metrics(
        nv_inference_pending_request_count=value,
        nv_gpu_utilization__gpu_uuid___a=value,
        nv_gpu_memory_used_bytes__gpu_uuid___a=value,
        queue_limit_refused=value,
    )
    with web.serving(servers, "127.0.0.1", 0, "") as address:
        answer = get(address, "/events")
        events(answer, 1)
        for at_s in (101.0, 102.0):
            told = replace(reading(at_s, 2), metrics=page, gpus=page.gpus)
            tell(servers, told)
            assert events(answer, 1)[0]["end"] == 1000 * at_s
        answer.close()
