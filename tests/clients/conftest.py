"""What the tests of clients share: a server whose answers they give."""

from collections.abc import Iterator

import pytest
from h2_server import H2Server, h2_server


@pytest.fixture
def h2() -> Iterator[H2Server]:
    """A server on the h2 library."""
    with h2_server() as running:
        yield running
