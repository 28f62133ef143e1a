"""Free ports: no connection and no other start gets one before its server listens."""

import subprocess
import sys
from pathlib import Path

import pytest

from serve import resources
from serve.resources import LOOPBACK, free_ports

ROOT = Path(__file__).parents[2]
CHOOSE = """
import sys
from pathlib import Path
from serve import resources
resources.EPHEMERAL = Path(sys.argv[1])
print(*resources.free_ports("127.0.0.1", 0, 0, 0))
"""


def test_a_free_port_is_none_that_a_connection_gets() -> None:
    first, last = map(int, resources.EPHEMERAL.read_text().split())
    ports = [port for _ in range(10) for port in free_ports(LOOPBACK, 0, 0, 0)]
    assert not [port for port in ports if first <= port <= last]
    assert len(set(ports)) == 30


def test_what_one_process_chose_no_other_one_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ports can be chosen, and nothing listens on them; the second process takes ports of connections."""
    few = tmp_path / "range"
    few.write_text(f"{resources.LOWEST + 4}\t65535\n")
    monkeypatch.setattr(resources, "EPHEMERAL", few)
    mine = set(free_ports(LOOPBACK, 0, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE, str(few)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    others = [int(port) for port in done.stdout.split()]
    assert len(mine) == 3
    assert mine <= set(range(resources.LOWEST, resources.LOWEST + 4))
    assert not mine & set(others)
    assert sum(port >= resources.LOWEST + 4 for port in others) >= 2
