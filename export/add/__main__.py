"""Add a model to the repository: prove its batch axis and write its configuration, with a reason for every choice.

MODEL is an ONNX file, a torch.export file (.pt2) or a torch module factory `package.module:function`, which returns the
module and example inputs by name, the batch first (see export/README.md). `make serve MODEL=NAME` serves the added
model.
"""

import argparse
import sys

from export import repository
from triton_batching.options import MOST_INSTANCES, MOST_ROWS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 2 for a mistake in the call or the files, 1 for a batch axis that is not proved."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from export.add.command import run

        return run(arguments)

    return guarded(action, on_interrupt="stopped; nothing was added.")


def _parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "python -m export.add",
        __doc__,
        example="classifier.onnx --name classifier --batching dynamic --max-batch-size 16 --batch-timeout-us 2000",
    )
    parser.add_argument("model", metavar="MODEL", help="FILE.onnx, FILE.pt2 or package.module:function")
    parser.add_argument("--name", help="what the model is served as (default: the file's name)")
    parser.add_argument("--batching", choices=("dynamic", "none"), default="dynamic")
    parser.add_argument(
        "--max-batch-size", type=whole_number(1, MOST_ROWS), default=16, help="rows in one execution (default: 16)"
    )
    parser.add_argument(
        "--batch-timeout-us",
        # In a shorter time nothing arrives to join the batch; with a longer one a lone request waits for seconds.
        type=whole_number(100, 1_000_000),
        help="microseconds that a request may wait for others, 2000 for 2 ms (default: no delay)",
    )
    parser.add_argument(
        "--instances", type=whole_number(1, MOST_INSTANCES), default=1, help="executions at a time (default: 1)"
    )
    parser.add_argument("--kind", choices=("cpu", "gpu"), help="device (default: a GPU if the server has one)")
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="NAME=lo:hi",
        help="valid values of an input; NAME=INPUT[AXIS] if it is the length of a request (repeatable)",
    )
    parser.add_argument(
        "--samples", type=path, help="an .npz file with real rows of every input, instead of random rows"
    )
    parser.add_argument(
        "--opset", type=whole_number(1, 99), help="convert the graph to this version, 21 for NVIDIA's release 24.10"
    )
    parser.add_argument(
        "--tolerance",
        type=number(above=0, most=1),
        help="largest difference of a batch from its rows, of what an element varies by",
    )
    parser.add_argument(
        "--variable-length",
        action="store_true",
        help="let requests of different length share a batch: the server pads them; proves that answers stay the same",
    )
    parser.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="NAME",
        help="an input that the server makes, 1 for own elements and 0 for padding (default: attention_mask, mask)",
    )
    parser.add_argument(
        "--pad-value",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what an input is padded with (default 0)",
    )
    repository.add_option(parser)
    parser.add_argument("--force", action="store_true", help="replace a model of the same name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
