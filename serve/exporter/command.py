"""Serves the metrics of a tritonserver that something else started: what `python -m serve.exporter` does."""

import argparse
import threading

from serve.cluster.probe import address
from serve.exporter.endpoint import serving
from serve.exporter.page import Page
from serve.management.api import ServerError
from triton_batching.terminal import terminal


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C. The server may start later and may end: until it is back, the answer is 503."""
    page = Page(arguments.url, arguments.metrics)
    with serving(arguments.host, arguments.port, page.text) as port:
        console = terminal()
        console.print(
            f"metrics at http://{address(arguments.host, port)}/metrics. Ctrl-C ends the exporter.", markup=False
        )
        try:
            page.text()
        except ServerError as error:
            console.print(f"{error}. The exporter waits for it.", markup=False)
        threading.Event().wait()
