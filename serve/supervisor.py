"""A server that is started again when it dies by itself, or a model in it for good: same models, settings, ports."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from serve import failure_log
from serve.launcher import LaunchError, Server, Settings, launch
from serve.revival import revived
from triton_batching.terminal import Failure, Mistake

POLL_S = 0.1
FIRST_WAIT_S = 0.5
# So many deaths in so many seconds of service end the program; what starting and waiting takes does not count.
MOST_DEATHS = 5
WINDOW_S = 60.0
KEPT_LOGS = 5


@dataclass(frozen=True, kw_only=True)
class Death:
    """How a server ended, the reason that its log gives, and how long it had served."""

    how: str
    details: str
    served_s: float
    settings: Settings


def supervise(
    settings: Settings,
    *,
    restart: bool,
    ready: Callable[[Server], None],
    told: Callable[[str], None],
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until an exception ends it; each server that is up goes to `ready`, each death as a sentence to `told`.

    Raises what `launch` raises when the first start fails, and `LaunchError` when the server died and is not to be
    started again, or died too often. KeyboardInterrupt ends it at any moment.
    """
    death = _serve(settings, ready, told, progress)
    settings = death.settings
    times: list[float] = []
    served_s = 0.0
    number = 0
    while True:
        number += 1
        served_s += death.served_s
        times = [*(one for one in times if served_s - one < WINDOW_S), served_s]
        if not restart:
            raise LaunchError(f"{death.how}.\n{death.details}")
        if len(times) >= MOST_DEATHS:
            raise LaunchError(
                f"{death.how}. That was death {len(times)} in {WINDOW_S:.0f} s of service, so it is not started "
                f"again.\n{death.details}"
            )
        wait_s = FIRST_WAIT_S * 2 ** (len(times) - 1)
        told(f"{death.how}; it is started again in {wait_s:g} s.{_keep(settings.log, number)}")
        time.sleep(wait_s)
        try:
            death = _serve(settings, ready, told, progress)
        except (Failure, Mistake) as error:
            how, _, details = str(error).partition("\n")
            death = Death(how=f"the start failed: {how.rstrip('.')}", details=details, served_s=0.0, settings=settings)


def _serve(
    settings: Settings,
    ready: Callable[[Server], None],
    told: Callable[[str], None],
    progress: Callable[[str], None],
) -> Death:
    """Serve until the server dies, or has a model that only a new server can bring back."""
    with launch(settings, progress=progress) as server:
        started = time.monotonic()
        ready(server)
        with revived(server, told=told) as revival:
            while server.running() and revival.failed is None:
                time.sleep(POLL_S)
        why = "; ".join(failure_log.reasons_of(server.log))
        how = server.end() if revival.failed is None else revival.failed
        return Death(
            how=how + (f" ({why})" if why else ""),
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
    """Rename the log of the server that died, because the next one begins its own; says where it is.

    A start that failed early, on a port that is taken or a file with a mistake, has none.
    """
    if log is None or not log.exists():
        return ""
    kept = log.with_suffix(f".{number}{log.suffix}")
    log.replace(kept)
    log.with_suffix(f".{number - KEPT_LOGS}{log.suffix}").unlink(missing_ok=True)
    return f" Its log is kept as {kept}."
