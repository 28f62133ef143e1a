"""What the dashboard shows: the panels of each row, with their queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The variables of the dashboard.
MODEL = 'model=~"$model"'
SERVER = 'instance=~"$instance"'
BOTH = f"{MODEL}, {SERVER}"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel: its title, the unit of its values in Grafana's words, and its queries by their legends.

    heat: show buckets of a histogram as colours over time.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    description: str = ""
    heat: bool = False


def _rate(metric: str, selector: str = BOTH, *, by: str = "model") -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def _recorded(name: str) -> dict[str, str]:
    """The value of a recording rule for each model."""
    return {"{{model}}": f"model:triton_batching_{name}{{{MODEL}}}"}


ROWS: Mapping[str, Sequence[Panel]] = {
    "Requests": (
        Panel(
            title="Servers that answer",
            queries={"{{instance}}": f'up{{job="triton", {SERVER}}}'},
            description="A server that is down is 0.",
        ),
        Panel(
            title="Requests a second",
            queries=_recorded("requests:rate5m"),
            unit="reqps",
            description="Answered and failed, without those that clients cancelled.",
        ),
        Panel(
            title="Failed or refused",
            queries={**_recorded("errors:ratio5m"), "budget": "slo:triton_batching_error_budget:ratio"},
            unit="percentunit",
            description="The share of requests, and the share that may fail.",
        ),
        Panel(
            title="Failures by reason",
            queries={
                "{{model}} {{reason}}": _rate("nv_inference_request_failure", by="model, reason") + " > 0",
                "{{model}} refused": f"model:triton_batching_refused_requests:rate5m{{{MODEL}}} > 0",
            },
            unit="reqps",
        ),
        Panel(
            title="Alerts that fire",
            queries={"{{alertname}} {{model}} {{instance}}": 'ALERTS{alertstate="firing"}'},
        ),
    ),
    "Batches": (
        Panel(
            title="Rows per execution",
            queries={
                **_recorded("rows_per_execution:mean5m"),
                "{{model}} max_batch_size": f"max by (model) (triton_batching_max_batch_size{{{BOTH}}})",
            },
            description="The mean, and the most that the configuration allows.",
        ),
        Panel(
            title="Executions by rows",
            queries={
                "{{le}}": f"sum by (le) (increase(triton_batching_execution_rows_bucket{{{BOTH}}}[$__rate_interval]))"
            },
            heat=True,
            description="How many executions had so many rows.",
        ),
        Panel(
            title="Requests per execution",
            queries=_recorded("requests_per_execution:mean5m"),
            description="If it is 1 while requests wait, batches do not form: ask perf.why.",
        ),
        Panel(
            title="Executions of a single row",
            queries={
                "{{model}}": _rate("triton_batching_execution_rows_bucket", f'le="1.0", {BOTH}')
                + " / "
                + _rate("triton_batching_execution_rows_count")
            },
            unit="percentunit",
            description="The share of executions.",
        ),
        Panel(
            title="How full batches are",
            queries=_recorded("batch_fill:ratio5m"),
            unit="percentunit",
            description="Rows per execution over max_batch_size.",
        ),
        Panel(
            title="Padding",
            queries=_recorded("padding:ratio5m"),
            unit="percentunit",
            description="The share of padding in what models with ragged batches compute.",
        ),
    ),
    "Time": (
        Panel(
            title="Requests that wait",
            queries={"{{model}} {{instance}}": f"nv_inference_pending_request_count{{{BOTH}}}"},
            description="In Triton's queue at the moment of each scrape.",
        ),
        Panel(
            title="Time in the queue",
            queries=_recorded("queue_seconds:mean5m"),
            unit="s",
            description="Mean of requests.",
        ),
        Panel(
            title="Time in execution",
            queries=_recorded("compute_seconds:mean5m"),
            unit="s",
            description="Mean of requests; each is charged the whole execution that it is part of.",
        ),
        Panel(
            title="Instances busy",
            queries=_recorded("utilisation:ratio5m"),
            unit="percentunit",
            description="The share of time in which an instance executes.",
        ),
    ),
    "Servers": (
        Panel(
            title="Memory",
            queries={"{{instance}}": f"triton_batching_server_memory_bytes{{{SERVER}}}"},
            unit="bytes",
            description="Of the server and its model processes.",
        ),
        Panel(
            title="CPU of the machine",
            queries={"{{instance}}": f"nv_cpu_utilization{{{SERVER}}}"},
            unit="percentunit",
        ),
        Panel(
            title="Models loaded again in an hour",
            queries={"{{model}} {{instance}}": f"increase(triton_batching_model_restarts_total{{{BOTH}}}[1h])"},
        ),
    ),
}
