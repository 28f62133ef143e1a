"""When the next replica of a deployment may start, after replicas that died and starts that failed."""

import time

# The first death is answered at once; each further one within the window doubles the wait.
FIRST_WAIT_S, LONGEST_WAIT_S, WINDOW_S = 0.5, 15.0, 60.0
# This many starts that fail in a row end the starting.
MOST_FAILED = 3


class Pace:
    """The pace of starts. gave_up: why no more replicas are started, "" if they are."""

    def __init__(self) -> None:
        self.gave_up = ""
        self._failed, self._wait_until = 0, 0.0
        self._death_times: list[float] = []

    def may_start(self) -> bool:
        """Whether a replica may start now."""
        return not self.gave_up and time.monotonic() >= self._wait_until

    def begin(self) -> None:
        """A replica got ready."""
        self._failed = 0

    def die(self) -> str:
        """Count a death, and let the next start wait if there were others lately; says when it is."""
        now = time.monotonic()
        self._death_times = [*(time_s for time_s in self._death_times if now - time_s < WINDOW_S), now]
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (len(self._death_times) - 2))
        if len(self._death_times) == 1:
            return "; another starts"
        self._wait_until = now + wait_s
        return f"; another starts in {wait_s:g} s"

    def fail(self, why: str) -> None:
        """Count a start that failed."""
        self._failed += 1
        if self._failed >= MOST_FAILED:
            self.gave_up = f"{self._failed} starts failed in a row; the last: {why}."

    def try_again(self) -> None:
        """Start at once, as if nothing had failed."""
        self._failed, self._wait_until, self.gave_up = 0, 0.0, ""
