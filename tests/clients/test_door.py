"""What the client says if a proxy answers that has no server."""

import pytest
from doors import SIMULATED, door, opened

from clients import Model, TransportName
from clients.errors import NotReadyError

pytestmark = pytest.mark.server


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_a_door_without_a_replica_is_not_taken_for_a_missing_server(transport: TransportName) -> None:
    front = door(SIMULATED)
    url = f"{front.host}:{front.http_port if transport == 'http' else front.grpc_port}"
    with opened(front), pytest.raises(NotReadyError) as caught:
        Model(SIMULATED, url=url, transport=transport)
    error = caught.value
    assert f"{url}: a proxy answers there" in str(error)
    assert "make serve" not in str(error)
    assert error.retryable
