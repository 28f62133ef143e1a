"""How a cluster ends: nothing of it is left, and the next `up` continues from where it was."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_load import Load
from cluster_program import PLAN, Cluster, Remains
from tiny_models import python_model

pytestmark = pytest.mark.server
SCALING = "[deployment.scaling]\nmax = 2\ntarget_pending = 2\ndown_after_s = 1\n"
# It starts unless the configuration is the variant `broken`.
MODEL = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        if "broken" in args["model_config"]:
            raise pb.TritonModelException("this variant is broken")
    def execute(self, requests):
        return [pb.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "plan.toml", PLAN.format(replicas=1))
    yield made
    made.end(signal.SIGTERM)
    made.do("down")


def test_cluster_leaves_nothing_and_continues(cluster: Cluster) -> None:
    """Ctrl-C, then kill -9 of `up`, then `down`: one cluster after another, because each start takes seconds."""
    cluster.up()
    cluster.do("scale", "accelerator", "2")
    names = {replica.name for replica in cluster.ready()}
    remains = Remains(cluster)
    assert cluster.end(signal.SIGINT) == 130
    assert remains.are_gone()

    cluster.up()
    assert "continues with 2 replicas of accelerator (the plan says 1)" in cluster.printed()
    replicas = cluster.ready()
    assert len(replicas) == 2
    assert not names & {replica.name for replica in replicas}
    remains = Remains(cluster)
    assert cluster.end(signal.SIGKILL) == -signal.SIGKILL
    assert remains.are_gone()

    cluster.up("--fresh")
    assert "continues" not in cluster.printed()
    assert len(cluster.ready()) == 1
    remains = Remains(cluster)
    cluster.do("down")
    assert cluster.ended() == 0
    assert remains.are_gone()
