"""The plan of the cluster that these experiments start."""

from dataclasses import dataclass
from pathlib import Path

from export.repository import REPOSITORY


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Replicas of one model behind a front door on free ports."""

    model: str
    config_name: str | None
    repository: Path = REPOSITORY
    replicas: int = 3

    def write(self, folder: Path) -> Path:
        """Write it into `folder`; the path of the plan."""
        lines = [
            "http_port = 0",
            "grpc_port = 0",
            "metrics_port = 0",
            f'repository = "{self.repository}"',
            "[[deployment]]",
            'name = "replicas"',
            f'models = ["{self.model}"]',
            *([f'config_name = "{self.config_name}"'] if self.config_name else []),
            f"replicas = {self.replicas}",
            "p99_ms = 200",
            "most_in_flight = 1024",
        ]
        plan = folder / "plan.toml"
        plan.write_text("\n".join(lines) + "\n")
        return plan
