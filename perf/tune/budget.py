"""What a search may cost: live points, and seconds of live load."""

from dataclasses import dataclass

from perf.tune.journal import WARM_UP_S, Journal

# The last comparison: default, chosen, the default once more (their difference is the noise), chosen.
FINAL_POINTS = 4
# The two best once more, for longer, before the last comparison.
SURVIVORS = 2
# A trial that decides lasts twice as long as a first look.
LONGER = 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """`points` measurements and `seconds` of load in all; the profile took `profile_points` and `profile_s` of them.

    A first look lasts `short_s`, as long as the seconds allow when all points are used, within `LIMITS_S`.
    """

    points: int = 13
    seconds: float = 90.0
    profile_points: int = 0
    profile_s: float = 0.0

    LIMITS_S = (1.5, 5.0)

    @property
    def short_s(self) -> float:
        """Seconds of a first look."""
        trials = self.points - self.profile_points
        long = FINAL_POINTS + SURVIVORS
        unit = (self.seconds - self.profile_s - trials * WARM_UP_S) / max(1, trials - long + LONGER * long)
        return round(min(max(unit, self.LIMITS_S[0]), self.LIMITS_S[1]) - 0.05, 1)

    @property
    def long_s(self) -> float:
        """Seconds of a trial that decides."""
        return LONGER * self.short_s

    @property
    def enough(self) -> bool:
        """Whether the current configuration and one other can be looked at and compared."""
        trials = FINAL_POINTS + 2
        load = 2 * self.short_s + FINAL_POINTS * self.long_s + trials * WARM_UP_S
        return trials <= self.points - self.profile_points and load <= self.seconds - self.profile_s

    def affords(self, journal: Journal, points: int, seconds: float, *, kept: int = FINAL_POINTS) -> bool:
        """Whether so many more trials of so many seconds can be paid, with so many long ones kept back."""
        left_points = self.points - self.profile_points - journal.points - kept
        left_s = self.seconds - self.profile_s - journal.live_s - kept * (self.long_s + WARM_UP_S)
        # A window ends with the counters that are read then, some milliseconds late.
        return points <= left_points and points * (seconds + WARM_UP_S) <= left_s + 0.5
