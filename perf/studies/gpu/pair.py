"""Step 6: two models packed on one device: what each takes longer beside the other, and what that buys."""

from pathlib import Path

from perf.measure.service_time_run import StepProgress
from perf.pack.interference import interference
from perf.pack.interference_record import Interference
from perf.studies.experiment import now, origin
from perf.studies.gpu.extent import Extent
from perf.studies.gpu.models import DYNAMIC
from perf.studies.gpu.record import COMMAND, Finding

CLIENTS = 16


def pair(extent: Extent, folder: Path, progress: StepProgress) -> list[Finding]:
    """Each model alone, then both together, on one server."""
    seconds, started = 2 * extent.trial_s, now()
    names, alone, together = interference(
        extent.pair,
        DYNAMIC,
        clients=CLIENTS,
        seconds=seconds,
        warm_up_s=extent.trial_s,
        progress=lambda text: progress(text, False),
    )
    record = Interference(
        models=names,
        config_name=DYNAMIC,
        clients=CLIENTS,
        seconds=seconds,
        alone=alone,
        together=together,
        **origin(COMMAND, started),
    )
    record.write(folder)
    first, second = names
    return [
        Finding(what=f"{first} and {second} together, over taking turns", value=record.gain, unit="x"),
        *(
            Finding(what=f"an execution of {name} beside the other, over alone", value=factor, unit="x")
            for name, factor in zip(names, record.factors, strict=True)
        ),
    ]
