"""Starts Prometheus and Alertmanager for running servers: what `python -m serve.observe` does."""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serve.cluster import place
from serve.management.metrics import Metrics, MetricsError
from serve.observe import programs
from serve.observe.__main__ import METRICS_URL
from serve.observe.programs import Program
from serve.resources import LOOPBACK
from triton_batching import whole_file
from triton_batching.terminal import Mistake, terminal

FILES = Path(__file__).parents[2] / "docker" / "observe"
POLL_S = 0.2
# In the folder of prometheus.yml, which names it.
TARGETS = "targets.json"
START_S = 30.0
EXAMPLES = (
    "model:triton_batching_rows_per_execution:mean5m",
    "rate(triton_batching_execution_rows_sum[1m]) / rate(triton_batching_execution_rows_count[1m])",
    "nv_inference_pending_request_count",
)


def run(arguments: argparse.Namespace) -> None:
    """Observe until Ctrl-C; raises `Mistake` if a program or a file is missing, `Failure` if a program died."""
    prometheus = programs.find("prometheus")
    alertmanager = programs.find("prometheus-alertmanager", "alertmanager")
    follows = arguments.metrics is None and arguments.targets is None
    urls = [] if arguments.targets else arguments.metrics or [METRICS_URL]
    targets = _targets(arguments.targets) if arguments.targets else _groups(urls, follows=follows)
    port = programs.free_port(arguments.port, taken=[arguments.alerts_port])
    addresses = [f"{LOOPBACK}:{port}", f"{LOOPBACK}:{programs.free_port(arguments.alerts_port, taken=[port])}"]
    with tempfile.TemporaryDirectory(prefix="triton-batching-observe-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        _write(folder, targets, addresses[1])
        started = [
            stack.enter_context(program.running())
            for program in (
                programs.prometheus(prometheus, folder, addresses[0]),
                programs.alertmanager(alertmanager, folder, addresses[1]),
            )
        ]
        _wait_until_ready(started)
        _tell(addresses, urls, follows=follows)
        while True:
            for program in started:
                program.check()
            if follows and (now := _groups(urls, follows=True)) != targets:
                targets = now
                whole_file.write(folder / TARGETS, now)
            time.sleep(POLL_S)


def _groups(urls: Sequence[str], *, follows: bool) -> str:
    """The content of Prometheus' file of targets: these servers, and the replicas of the clusters that run here."""
    return json.dumps([{"targets": list(urls)}, *(clusters() if follows else ())])


def clusters() -> list[dict[str, Any]]:
    """The groups of targets of the clusters of this user that run on this machine."""
    groups: list[dict[str, Any]] = []
    # Without a folder for clusters there are none; one that ends takes its file away.
    with contextlib.suppress(Mistake):
        for running in place.running():
            with contextlib.suppress(OSError, ValueError):
                groups.extend(json.loads(running.targets.read_text()))
    return groups


def _targets(file: Path) -> Path:
    try:
        groups = json.loads(file.read_text())
        if not all(isinstance(group["targets"], list) for group in groups):
            raise TypeError(groups)
    except OSError as error:
        raise Mistake(f"{file}: cannot be read ({error.strerror}). Name another, or a server: --metrics.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise Mistake(f'{file}: no targets in it. Write [{{"targets": ["localhost:8002"]}}].') from error
    return file.resolve()


def _write(folder: Path, targets: Path | str, alerts: str) -> None:
    """Put the configuration files and the addresses into the folder."""
    for name in ("prometheus.yml", "rules.yml", "alertmanager.yml"):
        shutil.copy(FILES / name, folder)
    if isinstance(targets, Path):
        (folder / TARGETS).symlink_to(targets)
    else:
        (folder / TARGETS).write_text(targets)
    (folder / "alertmanagers.json").write_text(json.dumps([{"targets": [alerts]}]))


def _wait_until_ready(started: Sequence[Program]) -> None:
    end = time.monotonic() + START_S
    with terminal().status("starting Prometheus and Alertmanager"):
        while not all(program.is_ready() for program in started):
            for program in started:
                program.check(late=time.monotonic() > end)
            time.sleep(POLL_S)


def _tell(addresses: Sequence[str], urls: Sequence[str], *, follows: bool) -> None:
    console = terminal()
    if follows:
        console.print(f"observes {METRICS_URL} and the replicas of clusters that come and go ({len(clusters())} now)")
    for url in urls:
        try:
            Metrics.read(url)
        except MetricsError:
            console.print(f"{url} gives no metrics yet. Start a server, or name another: --metrics.", markup=False)
    console.print(f"Prometheus http://{addresses[0]}  alerts http://{addresses[0]}/alerts", markup=False)
    console.print(f"Alertmanager http://{addresses[1]}", markup=False)
    console.print("try:")
    for expression in EXAMPLES:
        console.print(f"  http://{addresses[0]}/graph?g0.expr={quote(expression, safe='')}&g0.tab=0", markup=False)
    console.print(f"The dashboard for Grafana is {FILES / 'dashboard.json'}. Ctrl-C ends both.", markup=False)
