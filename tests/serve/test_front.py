"""The requests of serve/FRONT.md crash a bare tritonserver, as the page says."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from processes import wait_until

from serve.launcher import Settings, launch

PAGE = Path(__file__).parents[2] / "serve" / "FRONT.md"
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
EMPTY_REPLY = 52  # curl: the connection was closed before an answer


@pytest.mark.server
@pytest.mark.parametrize("number", [0, 1], ids=["shape", "nested"])
def test_a_single_request_ends_a_bare_server(number: int, ranker: Path) -> None:
    assert ranker.is_file()
    with launch(Settings(models=("ranker",))) as server:
        environment = os.environ | {"URL": server.http_url}
        done = subprocess.run(["bash", "-c", COMMANDS[number]], env=environment, capture_output=True, timeout=60)
        assert done.returncode == EMPTY_REPLY, done.stdout
        assert wait_until(lambda: not server.running(), seconds=30)


def test_the_page_has_a_command_for_each_request_and_the_readme_names_it() -> None:
    assert len(COMMANDS) == 3
    assert "serve/FRONT.md" in (PAGE.parents[1] / "README.md").read_text()
