"""The kinds of records: what each is, and the command that reads or writes it."""

from collections.abc import Mapping

# Kinds of results that a command writes for the user. No command reads them.
ONLY_WRITTEN = frozenset({"comparison", "study figures", "scale", "replication count"})
# Kind -> what it is, and the command that reads it, or writes it if it is in `ONLY_WRITTEN`. {folder} is the folder of
# the record, {file} its path.
KINDS: Mapping[str, tuple[str, str]] = {
    "record": ("a measurement of a sweep", "triton-batching report {folder}"),
    "ceiling": ("the ceiling of a sweep", "triton-batching report {folder}"),
    "batch timeline": ("a timeline of batches", "triton-batching report {folder}"),
    "study": ("a study", "triton-batching report {folder}"),
    "fleet": ("a run of the load generator", "triton-batching compare {file} OTHER"),
    "round": ("a round of perf.compare.versus", "triton-batching compare {folder}:A {folder}:B --noise {folder}:noise"),
    "looks": ("the looks of perf.compare.versus at its rounds", "the same command of perf.compare.versus"),
    "service_times": ("service times", "triton-batching simulate MODEL --load closed:16 --results {folder}"),
    "interference": ("the measured interference of two models", "triton-batching pack PLAN, if the plan names it"),
    "proof": ("a packing that ran on a server", "python -m perf.studies.packing.prove PLAN"),
    "placement": ("a placement of models on devices", "triton-batching pack PLAN --from {file}"),
    "study figures": ("the figures of a study's page", "triton-batching report {folder}"),
    "comparison": ("a comparison", "triton-batching compare A B"),
    "grid": ("a full grid", "python -m perf.studies.grid MODEL --results {folder}"),
    "judgement": ("a tuner's choice compared with a full grid", "python -m perf.studies.grid MODEL --results {folder}"),
    "predicted_point": (
        "a measurement beside a prediction",
        "python -m perf.studies.prediction --only-compare --results {folder}/..",
    ),
    "blind point": ("a measurement of a blind case", "python -m perf.studies.prediction blind --seed N --only-compare"),
    "blind client": ("a client of blind cases", "python -m perf.studies.prediction blind --seed N --only-compare"),
    "blind tuning": ("a tuning of a blind model", "python -m perf.studies.grid.blind --seed N"),
    "blind predictions": (
        "predictions of blind cases",
        "python -m perf.studies.prediction blind --seed N --only-compare",
    ),
    "pauses": ("the cost of pauses", "python -m perf.studies.pauses"),
    "goodput": ("a measurement of goodput", "python -m perf.studies.goodput --results {folder}"),
    "peers": ("a comparison with other servers", "python -m perf.studies.peers --results {folder}"),
    "padded requests": (
        "a measurement of requests that the server pads",
        "python -m perf.studies.padded --results {folder}",
    ),
    "pictures": ("a measurement of perf.studies.pictures", "python -m perf.studies.pictures --results {folder}"),
    "transports": ("a measurement of transports", "python -m perf.studies.transports"),
    "backend_overhead": ("a measurement of the backend's overhead", "python -m perf.studies.backend_overhead"),
    "served_share": ("a measurement of perf.studies.served_share", "python -m perf.studies.served_share"),
    "cost": ("what a call costs its client", "python -m perf.studies.cost"),
    "mixed calls": ("what became of many mixed calls", "python -m perf.studies.cost.mixed"),
    "aimd_cap": ("a measurement of perf.studies.aimd_cap", "python -m perf.studies.aimd_cap"),
    "replication": ("a claim that was measured again", "python -m perf.studies.replicate --results {folder}"),
    "replication count": ("how many claims held", "python -m perf.studies.replicate --results {folder}"),
    "soak": ("a soak", "python -m perf.studies.soak --show {file}"),
    "overload": ("an overload", "python -m perf.studies.overload MODEL --target-ms MS --results {folder}"),
    "memory trace": ("a memory trace", "python -m perf.studies.memory_lab {file}"),
    "estimate": ("a checked memory estimate", "python -m perf.studies.memory_estimate --results {folder}"),
    "memory lab": ("a comparison of allocators on a trace", "python -m perf.studies.memory_lab"),
    "scale": ("simulated days of a deployment that scales", "triton-batching scale PLAN"),
    "scaling_study": ("a comparison of scaling rules", "python -m perf.studies.scaling --results {folder}"),
    "scaling_live": ("a cluster that scales beside its simulation", "python -m perf.studies.scaling.live"),
    "packing_study": ("the experiment of packing", "python -m perf.studies.packing --results {folder}"),
    "compared predictions": (
        "predictions compared with measurements",
        "python -m perf.studies.prediction --only-compare --results {folder}",
    ),
    "later rounds": ("later rounds of a grid", "python -m perf.studies.grid MODEL --results {folder}"),
    "cluster fault": ("a fault of a cluster under load", "python -m perf.studies.cluster faults --results {folder}"),
    "cluster balance": ("the balance of a cluster", "python -m perf.studies.cluster balance --results {folder}"),
    "cluster under attack": ("a hostile load", "python -m perf.studies.cluster hostile --results {folder}"),
    "gpu step": ("a step of perf.studies.gpu", "python -m perf.studies.gpu --results {folder}/.."),
    "random graphs": (
        "a check of random graphs",
        "python -m perf.studies.memory_estimate.random_check --results {folder}",
    ),
    "operators": ("checked operators", "python -m perf.studies.memory_estimate.operators --results {folder}"),
}
