"""Starts Prometheus and Alertmanager for running servers: what `python -m serve.observe` does."""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from serve.management.metrics import Metrics, MetricsError
from serve.observe import programs
from serve.observe.__main__ import METRICS_URL
from serve.observe.following import Following, Group
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
    following = None if arguments.metrics or arguments.targets else Following()
    urls = arguments.metrics or []
    groups = following.groups() if following else [{"targets": urls}]
    targets = _targets(arguments.targets) if arguments.targets else json.dumps(groups)
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
        _tell(addresses, urls, groups if following else None)
        while True:
            for program in started:
                program.check()
            if following and (now := json.dumps(following.groups())) != targets:
                targets = now
                whole_file.write(folder / TARGETS, now)
            time.sleep(POLL_S)


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


def _tell(addresses: Sequence[str], urls: Sequence[str], followed: Sequence[Group] | None) -> None:
    """Print the addresses; `followed` are the targets that come and go, None if they do not."""
    console = terminal()
    if followed is not None:
        console.print(f"follows a server at {METRICS_URL} and every cluster of this user; it scrapes now:")
        for group in followed:
            labels = group.get("labels", {})
            console.print(f"  {', '.join(group['targets'])} {labels.get('replica', '')}".rstrip(), markup=False)
        if not followed:
            console.print("  nothing: no server and no cluster runs. It finds one that starts.")
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
