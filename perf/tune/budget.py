"""What a search may cost: live points, and seconds of live load."""

from dataclasses import dataclass

from perf.tune.journal import WARM_UP_S, Journal

# The last comparison: default, chosen, the default once more (their difference is the noise), chosen.
FINAL_POINTS = 4


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`points` measurements and `seconds` of load in all; the profile took `profile_points` and `profile_s` of them.

    `request_rate` is how many requests a second a good configuration is expected to answer: it says how long a trial
    must be to judge a percentile.
    """

    points: int = 13
    seconds: float = 90.0
    profile_points: int = 0
    profile_s: float = 0.0
    request_rate: float = 100.0

    # 459 requests are the fewest that can prove a p99 (binomial rule at 99 %); a trial that decides has more.
    SHORT_REQUESTS, LONG_REQUESTS = 500, 1500
    SHORT_S, LONG_S = (2.0, 5.0), (4.0, 8.0)

    @property
    def short_s(self) -> float:
        """Seconds of a first look."""
        return self._within(self.SHORT_REQUESTS / self.request_rate, self.SHORT_S)

    @property
    def long_s(self) -> float:
        """Seconds of a trial that decides."""
        return self._within(self.LONG_REQUESTS / self.request_rate, self.LONG_S)

    def affords(self, journal: Journal, points: int, seconds: float, *, reserve: bool = True) -> bool:
        """Whether so many more trials of so many seconds each can be paid, with the last comparison kept back."""
        held = FINAL_POINTS if reserve else 0
        left_points = self.points - self.profile_points - journal.points - held
        left_s = self.seconds - self.profile_s - journal.live_s - held * (self.long_s + WARM_UP_S)
        return points <= left_points and points * (seconds + WARM_UP_S) <= left_s + 1e-9

    @staticmethod
    def _within(value: float, limits: tuple[float, float]) -> float:
        return round(min(max(value, limits[0]), limits[1]), 1)
