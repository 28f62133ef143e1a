"""The same rule for Kubernetes: a HorizontalPodAutoscaler, or a ScaledObject of KEDA.

Both get the replicas that the load needs from one query of Prometheus, so that the steepness is part of it. Requests in
flight are those that wait, a gauge of Triton, and those that run: Triton adds up the time of every request in its
execution, and a second of it per second is one request.
"""

from typing import Any

import yaml

from perf.scale.comparison import ScaleRecord
from serve.cluster.scaling import DOWN, UP, Pace
from triton_batching.terminal import Mistake

# The name under which the HorizontalPodAutoscaler sees the query.
METRIC = "triton_replicas_needed"
WINDOW = "30s"
RUNNING = (
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
WAITING = "nv_inference_pending_request_count"


def query(model: str, *, target_pending: float, steepness: float) -> str:
    """The replicas that the requests in flight need: ready x (pending / target_pending) ^ (1 / steepness)."""
    selector = f'{{model="{model}"}}'
    running = " + ".join(f"sum(rate({name}{selector}[{WINDOW}]))" for name in RUNNING)
    ready = f"count({WAITING}{selector})"
    in_flight = f"(sum({WAITING}{selector}) + ({running}) / 1e6)"
    return f"{ready} * ({in_flight} / {ready} / {target_pending}) ^ (1 / {steepness})"


def _query(record: ScaleRecord) -> str:
    steepness = round(record.curve.steepness, 2)
    return query(record.curve.model, target_pending=_target(record), steepness=steepness)


def _target(record: ScaleRecord) -> float:
    if record.target_pending is None:
        raise Mistake(
            f"deployment {record.deployment}: no target reaches {record.share:.2%} in time, so there is none to write. "
            "Raise --max, or lower --share."
        )
    return round(record.target_pending, 2)


def hpa(record: ScaleRecord) -> str:
    """The autoscaler as YAML, with the rule of prometheus-adapter that gives it the metric as a comment above."""
    rule = {
        "rules": {
            "external": [
                {
                    "seriesQuery": WAITING,
                    "resources": {"namespaced": False},
                    "name": {"as": METRIC},
                    "metricsQuery": _query(record),
                }
            ]
        }
    }
    content = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "triton-server"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "triton-server"},
            "minReplicas": record.least,
            "maxReplicas": record.most,
            # The query gives replicas, so each replica counts for one.
            "metrics": [
                {
                    "type": "External",
                    "external": {"metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "1"}},
                }
            ],
            "behavior": _behavior(),
        },
    }
    told = "".join(f"# {line}\n" for line in _yaml(rule).splitlines())
    return f"{_head(record)}# Values for the Helm chart of prometheus-adapter:\n{told}{_yaml(content)}"


def keda(record: ScaleRecord, prometheus: str) -> str:
    """The ScaledObject as YAML."""
    content = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "triton-server"},
        "spec": {
            "scaleTargetRef": {"name": "triton-server"},
            "pollingInterval": 5,
            "minReplicaCount": record.least,
            "maxReplicaCount": record.most,
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": prometheus,
                        "query": _query(record),
                        "threshold": "1",
                        # No answer is a failure and not a load of zero.
                        "ignoreNullValues": "false",
                    },
                }
            ],
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior()}},
        },
    }
    return _head(record) + _yaml(content)


def _behavior() -> dict[str, Any]:
    return {"scaleUp": _pace(UP), "scaleDown": _pace(DOWN)}


def _pace(pace: Pace) -> dict[str, Any]:
    return {
        "stabilizationWindowSeconds": int(pace.stabilisation_s),
        "selectPolicy": str(pace.select),
        "policies": [
            {"type": str(policy.unit), "value": policy.value, "periodSeconds": int(policy.period_s)}
            for policy in pace.policies
        ],
    }


def _head(record: ScaleRecord) -> str:
    return (
        f"# Written by {' '.join(record.command)}.\n"
        f"# {record.curve.model}: {_target(record)} requests in flight at each replica. "
        "Correct the name of the Deployment.\n"
    )


def _yaml(content: object) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, width=1000))
