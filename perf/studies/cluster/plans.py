"""The plan of the cluster that these experiments start."""

from dataclasses import dataclass
from pathlib import Path

from export.repository import REPOSITORY


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Replicas of one model behind a front door on free ports. tenants: names, with their requests per second."""

    model: str
    config_name: str | None
    repository: Path = REPOSITORY
    replicas: int = 3
    tenants: tuple[tuple[str, float], ...] = ()
    most_in_flight: int = 1024

    def write(self, folder: Path) -> Path:
        """Write it and the tenants' tokens into `folder`; the path of the plan."""
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
            f"most_in_flight = {self.most_in_flight}",
        ]
        for name, rate in self.tenants:
            lines += ["[[tenant]]", f'name = "{name}"', f'token_file = "{name}.token"']
            lines += [f"requests_per_s = {rate}", f"burst = {max(1, int(rate / 4))}"]
            token = folder / f"{name}.token"
            token.touch(mode=0o600)
            token.write_text(self.token(name))
        plan = folder / "plan.toml"
        plan.write_text("\n".join(lines) + "\n")
        return plan

    @staticmethod
    def token(tenant: str) -> str:
        """The bearer token of a tenant of these experiments."""
        return f"{tenant}-of-an-experiment"
