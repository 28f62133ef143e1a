"""A model repository of simulated accelerators that take what a plan's models take, to prove the plan without a GPU."""

from pathlib import Path

from export.repository import REPOSITORY, model_folder
from perf.pack.workload import Curve, Model
from triton_batching.terminal import Mistake

ORIGINAL = "simulated_accelerator"


def build(
    models: tuple[Model, ...], folder: Path, *, server_ms: float, server_row_ms: float, repository: Path = REPOSITORY
) -> Path:
    """One copy of the simulated accelerator for each model, whose executions take what the plan says.

    Of that `server_ms` and `server_row_ms` a row are the server's own work around an execution, and the copy sleeps for
    the rest. Raises `Mistake` for a latency that is no line in the batch, since that is all that a copy can do.
    """
    original = model_folder(ORIGINAL, repository)
    text = (original / "config.pbtxt").read_text()
    for model in models:
        fixed, row = line(model.name, model.latency)
        if fixed <= server_ms or row < server_row_ms:
            raise Mistake(
                f"model {model.name}: {fixed:g} ms + {row:g} ms a row are no more than the server's own work, so no "
                "simulated accelerator is as fast. Prove slower models, or lower --server-ms and --server-row-ms."
            )
        made = folder / model.name
        made.mkdir()
        (made / "1").symlink_to((original / "1").resolve())
        changes = {
            f'name: "{ORIGINAL}"': f'name: "{model.name}"',
            'string_value: "20"': f'string_value: "{fixed - server_ms:g}"',
            'string_value: "0.5"': f'string_value: "{row - server_row_ms:g}"',
        }
        (made / "config.pbtxt").write_text(_changed(text, changes))
    return folder


def line(name: str, latency: Curve) -> tuple[float, float]:
    """Fixed and row milliseconds of a latency that is a line; raises `Mistake`."""
    if len(latency.sizes) < 2:
        return latency.values[0], 0.0
    row = (latency.values[-1] - latency.values[0]) / (latency.sizes[-1] - latency.sizes[0])
    fixed = latency.values[0] - row * latency.sizes[0]
    if any(abs(fixed + row * k - value) > 1e-6 for k, value in zip(latency.sizes, latency.values, strict=True)):
        raise Mistake(f"model {name}: its latency is no line in the batch, so no simulated accelerator can take it.")
    return fixed, row


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise Mistake(f"{ORIGINAL}/config.pbtxt: {old} is not there once, so no copy can be made of it.")
        text = text.replace(old, new)
    return text
