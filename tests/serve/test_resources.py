"""Free ports: no connection and no other start gets one before its server listens."""

import contextlib
import socket
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
resources.EPHEMERAL, resources.LOWEST = Path(sys.argv[1]), int(sys.argv[2])
print(*resources.free_ports("127.0.0.1", 0, 0, 0))
"""


def test_a_free_port_is_none_that_a_connection_gets() -> None:
    first, last = map(int, resources.EPHEMERAL.read_text().split())
    ports = [port for _ in range(10) for port in free_ports(LOOPBACK, 0, 0, 0)]
    assert not [port for port in ports if first <= port <= last]
    assert len(set(ports)) == 30


def four_free() -> int:
    """The first of four ports on which nothing listens."""
    for first in range(resources.LOWEST, 30_000, 4):
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + 4):
                sockets.enter_context(socket.create_server((LOOPBACK, port)))
            return first
    raise AssertionError("no four free ports")


def test_what_one_process_chose_no_other_one_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ports can be chosen, and nothing listens on them; the second process takes ports of connections."""
    few, lowest = tmp_path / "range", four_free()
    few.write_text(f"{lowest + 4}\t65535\n")
    monkeypatch.setattr(resources, "LOWEST", lowest)
    monkeypatch.setattr(resources, "EPHEMERAL", few)
    mine = set(free_ports(LOOPBACK, 0, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", CHOOSE, str(few), str(lowest)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    others = [int(port) for port in done.stdout.split()]
    assert len(mine) == 3
    assert mine <= set(range(lowest, lowest + 4))
    assert not mine & set(others)
    assert sum(port >= lowest + 4 for port in others) >= 2
