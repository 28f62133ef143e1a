"""A model repository of simulated accelerators that take the planned times, to prove a plan without a GPU."""

from pathlib import Path

from export.repository import REPOSITORY, model_folder
from perf.pack.workload import Curve, Model
from triton_batching.terminal import Mistake

ORIGINAL = "simulated_accelerator"


def build(
    models: tuple[Model, ...], folder: Path, *, server_ms: float, server_row_ms: float, repository: Path = REPOSITORY
) -> Path:
    """Make a copy of the simulated accelerator for each model; its executions take the planned time.

    `server_ms` and `server_row_ms` per row are the server's own work around an execution; the copy sleeps for the rest.
    Raises `Mistake` for a latency that is not a line, as a copy can only take fixed and row milliseconds.
    """
    original = model_folder(ORIGINAL, repository)
    text = (original / "config.pbtxt").read_text()
    for model in models:
        fixed, row = line(model.name, model.latency)
        if fixed <= server_ms or row < server_row_ms:
            raise Mistake(
                f"model {model.name}: {fixed:g} ms + {row:g} ms per row are not more than the server's own work, so a "
                "simulated accelerator is too slow. Prove slower models, or lower --server-ms and --server-row-ms."
            )
        copy = folder / model.name
        copy.mkdir()
        (copy / "1").symlink_to((original / "1").resolve())
        changes = {
            f'name: "{ORIGINAL}"': f'name: "{model.name}"',
            'string_value: "20"': f'string_value: "{fixed - server_ms:g}"',
            'string_value: "0.5"': f'string_value: "{row - server_row_ms:g}"',
        }
        (copy / "config.pbtxt").write_text(_changed(text, changes))
    return folder


def line(name: str, latency: Curve) -> tuple[float, float]:
    """The fixed and the row milliseconds of a linear latency; raises `Mistake` for another one."""
    if len(latency.sizes) < 2:
        return latency.values[0], 0.0
    row = (latency.values[-1] - latency.values[0]) / (latency.sizes[-1] - latency.sizes[0])
    fixed = latency.values[0] - row * latency.sizes[0]
    if any(abs(fixed + row * k - value) > 1e-6 for k, value in zip(latency.sizes, latency.values, strict=True)):
        raise Mistake(f"model {name}: its latency is not a line, which is all that a simulated accelerator can do.")
    return fixed, row


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise Mistake(f"{ORIGINAL}/config.pbtxt: {old} is not there exactly once, so it cannot be copied.")
        text = text.replace(old, new)
    return text
