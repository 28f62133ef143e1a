"""How long an execution takes, by its rows: as said on the command line, or as a server counted it."""

from collections.abc import Mapping

from perf.batcher.instances import ServiceTime
from perf.batcher.request import MS, Time
from triton_batching.terminal import Mistake


class ServiceError(Mistake):
    """The words do not make a service time."""


def table(times: Mapping[int, Time]) -> ServiceTime:
    """Service times at some sizes; between them on a straight line, beyond them as the line to the nearest goes on."""
    sizes = sorted(times)

    def service(rows: int) -> Time:
        if len(sizes) == 1 or rows in times:
            return times.get(rows, times[sizes[0]])
        after = min((index for index, size in enumerate(sizes) if size > rows), default=len(sizes) - 1)
        left, right = sizes[max(0, after - 1)], sizes[max(1, after)]
        slope = (times[right] - times[left]) / (right - left)
        # A table with noise must not end in a negative time.
        return max(round(times[left] + slope * (rows - left)), min(round(time) for time in times.values()) // 2)

    return service


def read_service(text: str) -> ServiceTime:
    """`20+0.5` is 20 ms and 0.5 ms more for each row; `1=20.5,8=24` a table of ms; raises `ServiceError`."""
    try:
        if "=" in text:
            pairs = [part.split("=") for part in text.split(",")]
            times = {int(size): round(float(ms) * MS) for size, ms in pairs}
            if min(times) < 1 or min(times.values()) < 0:
                raise ValueError(text)
            return table(times)
        fixed, _, row = text.partition("+")
        fixed_ns, row_ns = round(float(fixed) * MS), round(float(row or 0) * MS)
        if min(fixed_ns, row_ns) < 0:
            raise ValueError(text)
    except (ValueError, OverflowError) as error:
        raise ServiceError(
            f"--service-ms {text}: not a service time. Write 20+0.5 (20 ms and 0.5 ms for each row) or a table of rows "
            "and ms: 1=20.5,8=24."
        ) from error
    return lambda rows: fixed_ns + row_ns * rows
