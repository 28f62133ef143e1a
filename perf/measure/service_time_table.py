"""Prints the service times of a ramp."""

from rich.console import Console
from rich.table import Table

from perf.measure.service_profile import ServiceTimes


def show(ramp: ServiceTimes, console: Console) -> None:
    """Print the service times of a ramp: a line for each batch size, the fit, and the times around an execution."""
    threads = "" if ramp.threads is None else f", {ramp.threads} threads"
    table = Table(
        "rows",
        "executions",
        "mean ms",
        "+- ms",
        "curve ms",
        "90 % of the curve",
        "rows/s",
        title=f"{ramp.model}: {ramp.instances} instance(s){threads}",
    )
    sizes = {size.rows: size for size in ramp.sizes}
    for rows in ramp.table.counted:
        at, size = ramp.table_us[rows], sizes.get(rows)
        table.add_row(
            str(rows),
            # The others are next to a step, and were measured with requests of so many rows.
            str(size.executions) if size else "step",
            f"{size.mean_us / 1e3:.3f}" if size else "",
            f"{size.error_us / 1e3:.3f}" if size else "",
            f"{at / 1e3:.3f}",
            f"{ramp.table.low_us[rows] / 1e3:.3f} to {ramp.table.high_us[rows] / 1e3:.3f}",
            f"{ramp.instances * rows / at * 1e6:,.0f}",
        )
    console.print(table)
    line = ramp.line
    console.print(
        f"s(b) = ({line.fixed_us / 1e3:.3f} +- {line.fixed_error_us / 1e3:.3f}) ms + "
        f"({line.row_us / 1e3:.4f} +- {line.row_error_us / 1e3:.4f}) ms x b, R2 {line.r2:.3f}; "
        f"the curve is {ramp.table.shape}",
        markup=False,
    )
    gap, most, way = ramp.gap, ramp.max_batch_size, ramp.way
    console.print(
        f"between executions {gap.at(1) / 1e3:.3f} ms after one row, {gap.at(most) / 1e3:.3f} ms after {most}, "
        f"dispatch {ramp.dispatch_us / 1e3:.3f} ms; each arrival adds {ramp.burden.each_us / 1e3:.3f} ms",
        markup=False,
    )
    console.print(
        f"way of a request {way.lone_us / 1e3:.3f} ms, each further answer of a batch "
        f"{way.each_us / 1e3:.3f} ms later; noise 5-95 %: {ramp.noise[2]:.2f} to {ramp.noise[-3]:.2f} "
        f"({ramp.noise_count} readings)",
        markup=False,
    )
    costs = ramp.request_costs
    console.print(
        f"each further row of a request adds {way.row_lone_us / 1e3:.3f} ms to its way; each request adds "
        f"{(costs.computing_us + costs.output_us) / 1e3:.3f} ms to its execution, beside its rows",
        markup=False,
    )
