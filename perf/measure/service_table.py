"""The service times of one ramp as a person reads them: a line for each size, the fit, and what lies around it."""

from rich.console import Console
from rich.table import Table

from perf.measure.service_profile import ServiceTimes


def show(ramp: ServiceTimes, console: Console) -> None:
    """Print the table and what goes with it."""
    threads = "" if ramp.threads is None else f", {ramp.threads} threads"
    table = Table(
        "rows",
        "executions",
        "mean ms",
        "+- ms",
        "table ms",
        "rows/s",
        title=f"{ramp.model}: {ramp.instances} instance(s){threads}",
    )
    for size in ramp.sizes:
        at = ramp.table_us[size.rows]
        table.add_row(
            str(size.rows),
            str(size.executions),
            f"{size.mean_us / 1e3:.3f}",
            f"{size.error_us / 1e3:.3f}",
            f"{at / 1e3:.3f}",
            f"{ramp.instances * size.rows / at * 1e6:,.0f}",
        )
    console.print(table)
    line = ramp.line
    console.print(
        f"s(b) = ({line.fixed_us / 1e3:.3f} +- {line.fixed_error_us / 1e3:.3f}) ms + "
        f"({line.row_us / 1e3:.4f} +- {line.row_error_us / 1e3:.4f}) ms x b, R2 {line.r2:.3f}",
        markup=False,
    )
    gap, most, way = ramp.gap, ramp.max_batch_size, ramp.way
    console.print(
        f"between executions {gap.at(1) / 1e3:.3f} ms after one row, {gap.at(most) / 1e3:.3f} ms after {most}, "
        f"dispatch {ramp.dispatch_us / 1e3:.3f} ms; each arrival makes one {ramp.burden.each_us / 1e3:.3f} ms longer",
        markup=False,
    )
    console.print(
        f"a request from and to its execution {way.lone_us / 1e3:.3f} ms, each further one of a batch "
        f"{way.each_us / 1e3:.3f} ms later; noise 5-95 %: {ramp.noise[2]:.2f} to {ramp.noise[-3]:.2f} "
        f"({ramp.noise_count} readings)",
        markup=False,
    )
