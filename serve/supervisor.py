"""Starts a server again after it died, or after a model in it failed for good: same models, settings and ports."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from serve import failure_log
from serve.launcher import LaunchError, Server, Settings, launch
from serve.management import client_memory
from serve.revival import reviving
from triton_batching.terminal import Failure, Mistake

POLL_S = 0.1
FIRST_WAIT_S = 0.5
# This number of deaths within this time of service ends the program. The time of starts and waits does not count.
MOST_DEATHS = 5
WINDOW_S = 60.0
KEPT_LOGS = 5


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a server: how it ended, the details from its log, how long it had served, and with which settings."""

    how: str
    details: str
    served_s: float
    settings: Settings


def supervise(
    settings: Settings,
    *,
    restart: bool,
    ready: Callable[[Server], None],
    report: Callable[[str], None],
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until an exception ends it, for example KeyboardInterrupt.

    `ready` gets each server that is ready, `report` a sentence about each death, `progress` the state of each start.
    Raises the errors of `launch` if the first start fails, and `LaunchError` if the server died and `restart` is False,
    or if it died too often.
    """
    death = _serve(settings, ready, report, progress)
    settings = death.settings
    times: list[float] = []
    served_s = 0.0
    number = 0
    while True:
        number += 1
        served_s += death.served_s
        times = [*(time_s for time_s in times if served_s - time_s < WINDOW_S), served_s]
        if not restart:
            raise LaunchError(f"{death.how}.\n{death.details}")
        if len(times) >= MOST_DEATHS:
            raise LaunchError(
                f"{death.how}. That was death {len(times)} in {WINDOW_S:.0f} s of service, so it is not started "
                f"again.\n{death.details}"
            )
        wait_s = FIRST_WAIT_S * 2 ** (len(times) - 1)
        report(f"{death.how}; it is started again in {wait_s:g} s.{_keep(settings.log, number)}")
        time.sleep(wait_s)
        try:
            death = _serve(settings, ready, report, progress)
        except (Failure, Mistake) as error:
            how, _, details = str(error).partition("\n")
            death = Death(how=f"the start failed: {how.rstrip('.')}", details=details, served_s=0.0, settings=settings)


def _serve(
    settings: Settings,
    ready: Callable[[Server], None],
    report: Callable[[str], None],
    progress: Callable[[str], None],
) -> Death:
    """Serve until the server dies, or until one of its models needs a new server."""
    with launch(settings, progress=progress) as server:
        started = time.monotonic()
        ready(server)
        with reviving(server, report=report) as revival:
            swept = started
            while server.running() and revival.failure is None:
                time.sleep(POLL_S)
                if time.monotonic() - swept > client_memory.SWEEP_S:
                    client_memory.sweep(server.http_url)
                    swept = time.monotonic()
        reasons = "; ".join(failure_log.reasons_of(server.log))
        how = server.end() if revival.failure is None else revival.failure
        return Death(
            how=how + (f" ({reasons})" if reasons else ""),
            details=server.log_tail(),
            served_s=time.monotonic() - started,
            settings=replace(
                settings,
                http_port=server.http_port,
                grpc_port=server.grpc_port,
                metrics_port=server.metrics_port,
            ),
        )


def _keep(log: Path | None, number: int) -> str:
    """Rename the log of the dead server, which the next server would overwrite; a sentence with the new name.

    A start that failed early, for example on a port in use, has no log.
    """
    if log is None or not log.exists():
        return ""
    renamed = log.with_suffix(f".{number}{log.suffix}")
    log.replace(renamed)
    log.with_suffix(f".{number - KEPT_LOGS}{log.suffix}").unlink(missing_ok=True)
    return f" Its log is kept as {renamed}."
