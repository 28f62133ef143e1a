"""Which of tritonserver's flags a user may not set, because the launcher sets them itself."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from serve.installation import Installation
from serve.management import traces
from triton_batching import releases
from triton_batching.terminal import Mistake

# Flags that the launcher sets itself and relies on.
OURS = (
    *("--model-repository", "--model-store", "--backend-directory", "--model-control-mode", "--load-model"),
    *("--model-config-name", "--http-port", "--http-address", "--grpc-port", "--grpc-address", "--metrics-port"),
    "--metrics-address",
)
# A trace costs the server some microseconds, and the collector far more.
TRACE_RATE = 1000
# After the repair of triton-inference-server/server issue 7795. In 3 of 4 runs with 8 clients 2.51 died, after 796 to
# 6,170 traced requests.
SAFE_TRACES = releases.CONTENTS[releases.FACTS["safe_traces"].since].version
# Servers that know this flag refuse their clients' shared memory without it (release 26.04); older ones do not start
# with it. The secret of the admin APIs guards that memory; with --open-admin nothing does.
CLIENT_MEMORY = "--allow-client-shm"
# Percentiles and the distribution of latencies in the metrics. 24.10 has no histogram, and takes the setting.
LATENCIES = (
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.1:0.02,0.25:0.02,0.5:0.02,0.75:0.02,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001",
    "--metrics-config=histogram_latencies=true",
)
RESTRICTED = ("--http-restricted-api", "--grpc-restricted-protocol")


class SettingsError(Mistake):
    """The settings cannot be served: a model is not exported, or an argument is one that the launcher sets itself."""


def check(arguments: Sequence[str], *, open_admin: bool) -> None:
    """Raise `SettingsError` if one of these flags for tritonserver is one that the launcher sets itself."""
    for argument in arguments:
        if _sets(argument, OURS):
            raise SettingsError(
                f"{argument} after -- would override a flag that the launcher relies on. Set it before the --, as an "
                "option of python -m serve, or as a field of Settings."
            )
        if _sets(argument, RESTRICTED) and not open_admin:
            raise SettingsError(
                f"{argument} after -- restricts APIs, which the launcher does itself, and tritonserver takes one such "
                "setting for an API. Add --open-admin, and restrict after the -- all APIs that you want restricted."
            )


def always(installation: Installation) -> tuple[str, ...]:
    """The flags that every server gets from the launcher."""
    flags = ("--model-control-mode=explicit", "--exit-timeout-secs=10")
    return (*flags, f"{CLIENT_MEMORY}=true") if installation.knows(CLIENT_MEMORY) else flags


def latencies(arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags for latencies in the metrics; none if `arguments` set one of these settings."""
    ours = {flag.split("=")[1] for flag in LATENCIES}
    # The setting may be an argument of its own, after --metrics-config.
    chosen = {argument.removeprefix("--metrics-config=").partition("=")[0].strip() for argument in arguments}
    return () if ours & chosen else LATENCIES


def sets_traces(arguments: Sequence[str]) -> bool:
    """Whether `arguments` set traces: also --trace-file and shortened names, as Triton takes both."""
    return any("--trace" in argument for argument in arguments)


def with_traces(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The arguments, with flags that let tracing be switched on later and write to `folder`, if they set no traces."""
    return tuple(arguments) if sets_traces(arguments) else (*arguments, *traces.switchable(folder / "trace.json"))


def tracing(url: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The flags that send spans to `url`; raises `SettingsError` if it is no URL, or if `arguments` set traces too."""
    for argument in arguments:
        if "--trace" in argument:
            raise SettingsError(f"--trace and {argument} after -- both set traces. Leave out one of them.")
    try:
        address = urlsplit(url)
        complete = address.scheme == "http" and address.hostname and (address.port or True)
    except ValueError:
        complete = False
    if not complete or not address.path.strip("/"):
        raise SettingsError(
            f"--trace {url}: not the address of a collector for OTLP over HTTP. Write http://HOST:4318/v1/traces."
        )
    return traces.telemetry(url, TRACE_RATE)


def tracing_danger(arguments: Sequence[str], version: str) -> str:
    """A sentence if a server of this version can die from the traces that `arguments` ask for; else ""."""
    if not any("mode=opentelemetry" in argument for argument in arguments):
        return ""
    numbers = [int(number) for number in version.split(".") if number.isdecimal()]
    if tuple(numbers[:2]) >= SAFE_TRACES:
        return ""
    return (
        f"--trace: tritonserver {version} can die after a thousand traced requests or more, and each request with a "
        "traceparent is one. Let no stranger send that header."
    )


def _sets(argument: str, flags: Sequence[str]) -> bool:
    """Whether `argument` sets one of these flags; tritonserver also takes the beginning of a name (getopt_long)."""
    name = argument.partition("=")[0]
    return len(name) > len("--") and any(flag.startswith(name) for flag in flags)
