"""`python -m serve` as a process that a test watches, and one request to the model 'sleeper' that it serves."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from processes import wait_until

ROOT = Path(__file__).parents[2]


def ask(url: str) -> str:
    """One request to the model 'sleeper': "answered", or the error."""
    tensor = triton.InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.zeros((1, 1), dtype=np.int32))
    try:
        with triton.InferenceServerClient(url) as client:
            client.infer("sleeper", [tensor], client_timeout=20)
    except triton.InferenceServerException as error:
        return str(error)
    return "answered"


def program(repository: Path, output: Path, *arguments: str, change: str = "") -> subprocess.Popen[bytes]:
    """`python -m serve` with its output in a file, after the statement `change`."""
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    called = ["--repository", str(repository), *ports, *arguments]
    imports = "import sys\nfrom serve import guard_process, revival, supervisor\nfrom serve.__main__ import main"
    code = f"{imports}\n{change}\nsys.exit(main({called!r}))"
    with output.open("w") as file:
        return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


def end(serving: subprocess.Popen[bytes]) -> None:
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(40) == 0


def printed(output: Path, words: str, times: int = 1) -> bool:
    """Wait until the program has printed `words` that often; whether it did in a minute."""
    return wait_until(lambda: output.read_text().count(words) >= times, seconds=60)
