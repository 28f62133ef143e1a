"""A live search on real servers: every request of every point is accounted for, and what is measured stays."""

from pathlib import Path

import pytest

from perf.studies.goodput.__main__ import main
from perf.studies.goodput.contender import DEADLINE
from perf.studies.goodput.record import read
from perf.studies.goodput.stream import ArrivalStream

pytestmark = pytest.mark.server
# Slow enough for the clients of a busy machine, which would send thousands of requests a second too late.
SLOW = ["--time-scale", "2"]
ASKED = ["--only", DEADLINE, "--seeds", "1", "--arrivals", "poisson", "--requests", "100", *SLOW]


def test_every_request_of_a_point_is_accounted_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ASKED, "--results", str(tmp_path)]
    # Nine times what the device can do in time, so that the policy must refuse some. A busy machine may need the 24 s
    # for the start of the server; the next call goes on.
    for _ in range(3):
        assert main([*arguments, "--live", "--first", "9", "--seconds", "24"]) in (0, 3)
        (search,) = read(tmp_path)
        if search.points:
            break
    assert search.points
    for point in search.points:
        _, counts = ArrivalStream.parse("poisson", seed=0, requests=100).times(point.rate_per_s)
        # A client that sends late, on a busy machine, leaves requests out of the window.
        assert point.requests == counts.sum() if not point.late_sends else 0 < point.requests <= counts.sum()
        assert point.refused + point.not_sent <= point.late <= point.requests
    assert search.points[0].refused > 0
    assert search.points[0].rate_per_s == pytest.approx(9 * search.simulated_per_s)
    # Without --live nothing is measured, and nothing that was is lost.
    assert main(arguments) == 0
    assert list(read(tmp_path)) == [search]
    assert "deadline" in capsys.readouterr().out
