"""Run the whole path in one command: export, measure with and without batching, report, and read words from pictures.

It takes about twelve minutes: five interleaved repeats, with which the interval of a gain is 1.2 standard deviations
wide on each side, and with two 9. A stopped demo continues where it was. `--quick` takes about a minute: two models and
one repeat, which has no interval.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perf.measure.sweep import STOPPED
from triton_batching.options import path
from triton_batching.terminal import guarded, program_parser, terminal

if TYPE_CHECKING:
    from perf.measure.sweep_run import Sweep
    from perf.records.measurement import Store

PICTURES = Path(__file__).parents[1] / "clients" / "pictures"
CONFIGS = ("baseline", "dynamic", "dynamic_2_instances")
# The third shows what a queue delay buys and costs: as long as one execution takes.
TIMELINES = (("baseline", None), ("dynamic", None), ("dynamic", 20_000))
PICTURE_SHAPE = (("input.1", (1, 32, 100)),)


def studies(*, quick: bool) -> list[Sweep]:
    """The measured sweeps: a simulated accelerator, and two models on this CPU."""
    from perf.measure.sweep_options import parse_range
    from perf.measure.sweep_run import Sweep
    from perf.records.measurement import AnalyzerLoad

    window_ms, repeats = (300, 1) if quick else (700, 5)
    # Models that compute vary more than one that sleeps.
    longer_ms = window_ms if quick else 1200
    configs, ranker = (CONFIGS[:2], (1, 64)) if quick else (CONFIGS, (1, 16, 64))
    accelerator = parse_range("2:16:14" if quick else "2:16:7")
    sweeps = [
        Sweep(
            model="simulated_accelerator",
            config_names=configs,
            loads=tuple(
                AnalyzerLoad(
                    concurrency=concurrency,
                    request_rows=2,
                    data="random",
                    shapes=PICTURE_SHAPE,
                    window_ms=window_ms,
                )
                for concurrency in accelerator
            ),
            repeats=repeats,
        ),
        Sweep(
            model="ranker",
            config_names=configs,
            loads=tuple(AnalyzerLoad(concurrency=concurrency, window_ms=longer_ms) for concurrency in ranker),
            repeats=repeats,
            ceiling=True,
        ),
        Sweep(
            model="text_recognition",
            config_names=configs,
            loads=tuple(AnalyzerLoad(concurrency=concurrency, window_ms=longer_ms) for concurrency in (1, 16)),
            repeats=repeats,
            ceiling=True,
        ),
    ]
    return sweeps[:2] if quick else sweeps


def demo(store: Store, *, quick: bool) -> int:
    """Run all steps in order and print their results; 1 if a picture cannot be read."""
    from clients.examples import recognize
    from export.command import export_all
    from export.models.catalogue import choose
    from perf.measure.sweep_run import run_with_progress
    from perf.measure.timeline_run import record
    from perf.report import command as report
    from serve.launcher import Settings, launch

    console = terminal()
    console.rule("1. Export the ranker to ONNX (text_recognition comes trained and exported)")
    export_all(choose(["ranker"]))
    console.rule("2. Measure models with and without batching")
    run_with_progress(studies(quick=quick), store, console)
    with console.status("tracing how batches form") as status:
        for config_name, delay_us in TIMELINES[:2] if quick else TIMELINES:
            record("simulated_accelerator", config_name, store.folder, delay_us=delay_us, progress=status.update)
    console.rule("3. What batching bought")
    summary = report.summarise(store.folder)
    report.print_tables(console, summary)
    report.write_csv(summary, store.folder)
    page = report.write_html(summary, store.folder)
    console.rule("4. Pictures in, words out, batched by the server")
    with launch(Settings(models=(recognize.MODEL,), config_name="dynamic")) as server:
        code = recognize.read(sorted(PICTURES.glob("*.png")), url=server.grpc_url)
    console.print(f"report: {page}", markup=False)
    return code


def main(argv: list[str] | None = None) -> int:
    """Run the demo; exit codes like `perf.measure.sweep`."""
    parser = program_parser("python -m perf.demo", __doc__, example="--results perf/results/mine")
    parser.add_argument("--results", type=path, default=Path("perf/results/demo"), help="folder of the records")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    arguments = parser.parse_args(argv)

    def action() -> int:
        from perf.records.file import check_folder
        from perf.records.measurement import Store

        check_folder(arguments.results)
        return demo(Store(arguments.results), quick=arguments.quick)

    return guarded(action, on_interrupt=STOPPED.format(arguments.results))


if __name__ == "__main__":
    sys.exit(main())
