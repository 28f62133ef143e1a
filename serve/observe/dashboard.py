"""Write the Grafana dashboard from its panels (panels.py).

Import the file in Grafana (Dashboards, New, Import). It needs a Prometheus with docker/observe/rules.yml. No Grafana
has shown it yet: only its queries are tested.
"""

import argparse
import itertools
import string
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from triton_batching.options import path
from triton_batching.terminal import Mistake, guarded, program_parser, terminal

# It is made of 40 MB of code that only this program needs.
if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard, heatmap, timeseries
    from grafana_foundation_sdk.models.dashboard import DataSourceRef

    from serve.observe.panels import Panel

FILE = Path(__file__).parents[2] / "docker" / "observe" / "dashboard.json"
# Of a dashboard that is 24 wide.
WIDTH, HEIGHT = 8, 8


def main(argv: list[str] | None = None) -> int:
    """Write the file; exit code 2 without the package that makes it."""
    parser = program_parser("python -m serve.observe.dashboard", __doc__, example=f"--output {FILE.name}")
    parser.add_argument("--output", type=path, default=FILE, help="(default: docker/observe/dashboard.json)")
    arguments: argparse.Namespace = parser.parse_args(argv)

    def action() -> None:
        from triton_batching import whole_file

        whole_file.write(arguments.output, text())
        terminal().print(f"dashboard: {arguments.output}", markup=False)

    return guarded(action)


def text() -> str:
    """The dashboard as JSON; raises `Mistake` without the package that makes it."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
    except ImportError as error:
        raise Mistake(
            "the package 'grafana-foundation-sdk' is not installed, which writes dashboards. Run: make check, or "
            "pip install 'triton-batching[dev]'"
        ) from error
    return JSONEncoder(sort_keys=True, indent=2).encode(_dashboard().build()) + "\n"


def _dashboard() -> "dashboard.Dashboard":
    from grafana_foundation_sdk.builders import dashboard
    from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh

    from serve.observe.panels import ROWS

    board = dashboard.Dashboard("Triton: batches").uid("triton-batching").tags(["triton"])
    board = board.refresh("10s").time("now-30m", "now").timezone("browser")
    board = board.with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    for label in ("model", "instance"):
        variable = dashboard.QueryVariable(label).datasource(_source()).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        variable = variable.query(f"label_values(triton_batching_execution_rows_count, {label})")
        variable = variable.multi(True).include_all(True).all_value(".+")
        board = board.with_variable(variable.current(VariableOption(text="All", value="$__all")))
    numbers = itertools.count(1)
    for row, panels in ROWS.items():
        board = board.with_row(dashboard.Row(row).id(next(numbers)))
        for panel in panels:
            board = board.with_panel(_panel(panel).id(next(numbers)))
    return board


def _panel(panel: "Panel") -> "timeseries.Panel | heatmap.Panel":
    from grafana_foundation_sdk.builders import common, heatmap, prometheus, timeseries
    from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

    shown: timeseries.Panel | heatmap.Panel
    if panel.heat:
        shown = heatmap.Panel().calculate(False)
    else:
        legend = common.VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
        legend = legend.display_mode(LegendDisplayMode.LIST)
        shown = timeseries.Panel().min(0).fill_opacity(10).legend(legend)
    shown = shown.title(panel.title).description(panel.description).unit(panel.unit).datasource(_source())
    shown = shown.span(WIDTH).height(HEIGHT)
    for letter, (name, expression) in zip(string.ascii_uppercase, panel.queries.items(), strict=False):
        query = prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(name).datasource(_source())
        shown = shown.with_target(query.format(PromQueryFormat.HEATMAP) if panel.heat else query)
    return shown


def _source() -> "DataSourceRef":
    from grafana_foundation_sdk.models.dashboard import DataSourceRef

    return DataSourceRef(type_val="prometheus", uid="${source}")


if __name__ == "__main__":
    sys.exit(main())
