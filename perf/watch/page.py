"""The live page: its text is the same for every server, and its values come later."""

from perf.report.page import render
from perf.watch.figures import figures
from perf.watch.steps import SPANS

TABLES = (
    ("models", "Models, last 5 s"),
    ("processes", "Processes of the servers on this machine"),
    ("events", "Loads and deaths, the newest first"),
)


def page() -> str:
    """The text of the page."""
    spans = [(span, _words(span)) for span in SPANS]
    return render("watch.html.j2", figures=figures(), script="live.js", spans=spans, tables=TABLES)


def _words(span_s: float) -> str:
    return f"{span_s / 3600:.0f} h" if span_s >= 3600 else f"{span_s / 60:.0f} min"
