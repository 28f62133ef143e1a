"""configs/packed.pbtxt: a model's configuration with the planned batch size and one instance.

Comments, order and all other fields are those of config.pbtxt. A file that was changed by hand is not overwritten.
"""

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from export.repository import model_folder
from perf.pack.placement import Share
from perf.pack.servers import Server
from perf.records.candidate import Candidate
from perf.tune import tuned_file
from perf.tune.tuned_file import Why
from serve.doctor.document import Document
from serve.doctor.rules.batching import LONG_DELAY_US
from triton_batching.terminal import Mistake

# A rate limiter resource that exists once per device, so that its models take turns.
TURN = "turn"


def write(server: Server, repository: Path, *, kind: str, command: str, force: bool = False) -> list[Path]:
    """Write the files of all models of a server; raises `Mistake` if a model has no configuration, and `WriteError`."""
    texts = []
    for share in server.node.shares:
        folder = model_folder(share.model, repository)
        before = Document.read(folder / "config.pbtxt")
        if not before.exists or not before.text:
            raise Mistake(f"{before.path}: no such file. Write the model's configuration first.")
        tuned_file.refuse_foreign(folder / "configs" / f"{server.config_name}.pbtxt", force=force)
        texts.append((folder, packed(before, share, server, kind=kind, command=command)))
    return [tuned_file.write(folder, text, force=force, name=server.config_name) for folder, text in texts]


def packed(before: Document, share: Share, server: Server, *, kind: str, command: str) -> str:
    """The configuration of a model on a server, from the text of its config.pbtxt."""
    node = server.node
    config = text_format.Parse(before.text, ModelConfig())
    candidate = Candidate(
        max_batch_size=share.batch,
        delay_us=round(1e3 * node.delay_ms),
        instances=Candidate.of(config).instances,
        threads=None,
    )
    others = [name for name in node.models if name != share.model]
    neighbours = f"with {', '.join(others)}" if others else "alone"
    why = Why(
        headline=f"Planned: {share.rate_per_s:g} requests/s on a device {neighbours}, at most {share.batch} rows in "
        f"{share.exec_ms:.4g} ms, once within {node.duty_ms:.4g} ms.",
        reasons={
            "max_batch_size": f"{share.rate_per_s:g} requests/s x {node.duty_ms:.4g} ms arrive in a cycle",
            "max_queue_delay_microseconds": "a cycle: with the fewest executions so far it still runs once in a cycle"
            if node.takes_turns
            else "the device is its own",
        },
    )
    text = tuned_file.tuned(before, candidate, why, command).split("\n", 2)[2]
    return tuned_file.headed(_grouped(before.path, text, server, kind), command)


def _grouped(path: Path, text: str, server: Server, kind: str) -> str:
    """The text with one instance on the server's only device, which waits for its turn."""
    document = Document(path=path, text=text)
    while edits := document.removed("instance_group"):
        for edit in edits:
            text = text[: edit.start] + edit.text + text[edit.end :]
        document = Document(path=path, text=text)
    where = "kind: KIND_GPU gpus: [ 0 ]" if kind == "gpu" else "kind: KIND_CPU"
    turn = f' rate_limiter {{ resources [ {{ name: "{TURN}" count: 1 }} ] }}' if server.node.takes_turns else ""
    comment = "# One instance on the server's only device"
    comment += ", in turn with the server's other models (--rate-limit=execution_count).\n" if turn else ".\n"
    if 1e3 * server.node.delay_ms >= LONG_DELAY_US:
        comment = f"# doctor: ignore=B206 the delay is the cycle in which the models take turns\n{comment}"
    line = f"{comment}instance_group [ {{ count: 1 {where}{turn} }} ]"
    for edit in document.appended(line):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
