"""A page of metrics as a test reads it: values by name and labels."""

import re
import urllib.request
from collections.abc import Mapping

Page = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
# The parser of prometheus_client gives each counter another name.
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def text(url: str) -> str:
    """The page at `url` (host:port)."""
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=30) as reply:
        return str(reply.read().decode())


def scrape(url: str) -> Page:
    """The samples of the page at `url` (host:port)."""
    return {
        (name, frozenset((label, content) for label, content in LABEL.findall(labels))): float(number)
        for name, labels, number in LINE.findall(text(url))
    }


def value(page: Page, name: str, **labels: str) -> float:
    """The one sample with this name and these labels; version 1 if a model is named without one."""
    if "model" in labels:
        labels = {"version": "1", **labels}
    return page[name, frozenset(labels.items())]


def buckets(page: Page, name: str, model: str) -> dict[float, float]:
    """The counts of a histogram by upper bound."""
    return {
        float(dict(labels)["le"]): count
        for (sample, labels), count in page.items()
        if sample == f"{name}_bucket" and ("model", model) in labels
    }
