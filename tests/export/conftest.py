"""What the tests of the exporters share."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Run torch on one thread, because two threads of small layers mostly wait for each other on shared cores."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
