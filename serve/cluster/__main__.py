"""Run several tritonservers as one: replicas of the models behind one HTTP and one gRPC address.

A replica that dies is replaced. `up` runs in the foreground; the other commands talk to it from another terminal.
"""

import argparse
import sys

from triton_batching.options import MOST_REPLICAS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser

# Canary and control get this much each at most, and the other replicas the rest.
MOST_PERCENT = 45


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 2 for a mistake, 1 for a failure; `up` ends with 130 after Ctrl-C, 0 after `down` or SIGTERM."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from serve.cluster import command

        return command.run(arguments)

    said = "stopped. up with the same plan continues." if arguments.verb == "up" else "stopped waiting."
    return guarded(action, on_interrupt=said, service=arguments.verb == "up")


def _parser() -> argparse.ArgumentParser:
    name = "python -m serve.cluster"
    parser = program_parser(name, __doc__, example="up serve/cluster/plans/three_replicas.toml")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    up = verbs.add_parser("up", help="start the cluster of a plan and keep it until Ctrl-C")
    up.add_argument("plan", type=path, metavar="PLAN.toml")
    up.add_argument("--engine", choices=("local", "ray"), default="local", help="this machine (default), or Ray")
    up.add_argument("--fresh", action="store_true", help="start as planned, not as the last `up` ended")
    status = verbs.add_parser("status", help="print the replicas of a running cluster")
    status.add_argument("--json", action="store_true", help="everything that is known, as JSON")
    scale = verbs.add_parser("scale", help="have another number of replicas")
    scale.add_argument("deployment", metavar="DEPLOYMENT", help="a deployment, or one of its models")
    scale.add_argument("replicas", type=whole_number(0, MOST_REPLICAS), metavar="N")
    drain = verbs.add_parser("drain", help="let a replica answer its requests and stop it; another takes its place")
    drain.add_argument("replica", metavar="REPLICA")
    update = verbs.add_parser("update", help="replace the replicas one by one; goes back if the new ones do not start")
    update.add_argument("deployment", metavar="DEPLOYMENT", help="a deployment, or one of its models")
    update.add_argument(
        "--config-name", metavar="NAME", help="variant configs/NAME.pbtxt; without it the same one, for new files"
    )
    canary = verbs.add_parser("canary", help="try a configuration on one new replica, beside a new one with the old")
    canary.add_argument("deployment", metavar="DEPLOYMENT", help="a deployment, or one of its models")
    canary.add_argument("--config-name", metavar="NAME", help="variant configs/NAME.pbtxt (default: config.pbtxt)")
    canary.add_argument(
        "--percent",
        type=number(above=0, most=MOST_PERCENT),
        default=10.0,
        metavar="N",
        help="of the requests, for each of the two (default: 10); never more than an ordinary replica gets",
    )
    promote = verbs.add_parser("promote", help="update the replicas to the configuration of the canary")
    promote.add_argument("deployment", metavar="DEPLOYMENT", help="a deployment, or one of its models")
    abandon = verbs.add_parser("abandon", help="end a canary; the other replicas stay as they are")
    abandon.add_argument("deployment", metavar="DEPLOYMENT", help="a deployment, or one of its models")
    down = verbs.add_parser("down", help="end a running cluster and forget its state")
    down.add_argument(
        "there", type=path, nargs="?", metavar="PLAN.toml", help="the same as --plan; one of both is needed"
    )
    for verb in (scale, drain, update, canary, promote, abandon):
        verb.add_argument("--no-wait", action="store_true", help="return at once, not when it is done")
    for verb in (status, scale, drain, update, canary, promote, abandon, down):
        verb.add_argument(
            "--plan",
            type=path,
            metavar="PLAN.toml",
            help="the cluster's plan, or serve-PID (default: the only cluster that runs)",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
