"""Triton's spans in OpenTelemetry's format (OTLP as JSON) as the traces of requests.

tritonserver 2.51 sends three spans for a request: InferRequest (the wire), one with the model's name (the queue) and
"compute" (the execution). The parent of the first is the span that the client names in `traceparent`, over HTTP and
gRPC. Requests that ran in one batch have a "compute" each, with equal times. No span holds rows or shapes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serve.management.traces import Trace

MODEL, REQUEST_ID = "triton.model_name", "triton.request_id"
COMPUTE, WIRE = "compute", "InferRequest"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span: where it belongs, its attributes that are texts, and its events in nanoseconds since the epoch."""

    number: str
    parent: str
    trace: str
    name: str
    texts: Mapping[str, str]
    moments: Mapping[str, int]


def spans(content: bytes) -> list[Span]:
    """The spans of one message; raises `ValueError` if it is none."""
    try:
        message = json.loads(content)
        return [
            _span(span)
            for resource in message.get("resourceSpans", ())
            for scope in resource.get("scopeSpans", ())
            for span in scope.get("spans", ())
        ]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no spans: {error!r}") from error


def traces(received: Iterable[Span]) -> list[Trace]:
    """The requests of which all spans have come, in the order of their arrival in the queue."""
    by_number = {span.number: span for span in received}
    executed = {span.parent: span for span in by_number.values() if span.name == COMPUTE}
    found = [
        Trace(
            model=span.texts[MODEL],
            request_id=span.texts.get(REQUEST_ID, ""),
            trace_id=span.trace,
            moments=dict(_moments(span, executed[span.number], by_number)),
        )
        for span in by_number.values()
        if MODEL in span.texts and span.number in executed
    ]
    return sorted(found, key=lambda trace: trace.moments.get("QUEUE_START", 0))


def _moments(queued: Span, executed: Span, by_number: Mapping[str, Span]) -> Iterator[tuple[str, int]]:
    wire = by_number.get(queued.parent)
    for span in (wire, queued, executed):
        if span is not None and (span is not wire or span.name == WIRE):
            yield from span.moments.items()


def _span(span: Mapping[str, Any]) -> Span:
    texts = ((item["key"], item["value"].get("stringValue")) for item in span.get("attributes", ()))
    return Span(
        number=str(span["spanId"]),
        parent=str(span.get("parentSpanId", "")),
        trace=str(span["traceId"]),
        name=str(span.get("name", "")),
        texts={key: str(text) for key, text in texts if text is not None},
        moments={str(event["name"]): int(event["timeUnixNano"]) for event in span.get("events", ())},
    )
