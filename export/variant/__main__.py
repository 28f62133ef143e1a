"""Write a variant of a model in FP16, INT8, or for an accelerator, and compare it with the original.

MODEL is a model of the repository. The variant is a model of its own, MODEL_fp16 or MODEL_int8_static, with MODEL's
configurations. Inputs and outputs keep their types, so clients change the name only. Its batch axis is proved again,
XX
fp16          halves the file. It is for GPUs: onnxruntime computes most operators in FP32 on a CPU.
int8-static   a quarter of the file; the ranges of activations are measured once, on --calibrate
int8-dynamic  a quarter of the weights of MatMul and Gemm; each execution measures its ranges, over all of its rows

With --accelerator tensorrt, --precision is TensorRT's own; --threads needs no precision.
"""

import argparse
import sys

from export import repository
from triton_batching.options import MOST_THREADS, number, path, whole_number
from triton_batching.terminal import guarded, program_parser

PRECISIONS = ("fp16", "int8-static", "int8-dynamic")
STOPPED = "stopped; a variant is written as a whole or not at all."


def main(argv: list[str] | None = None) -> int:
    """Run the program; exit code 2 for a mistake, 1 for an error above the tolerance or a batch axis not proved."""
    arguments = _parser().parse_args(argv)

    def action() -> int:
        from export.variant.command import run

        return run(arguments)

    return guarded(action, on_interrupt=STOPPED)


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("python -m export.variant", __doc__, example="text_recognition --precision int8-static")
    parser.add_argument("model", metavar="MODEL", help="a model of the repository that serves an ONNX file")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: that of the file")
    parser.add_argument("--accelerator", choices=("tensorrt",), help="for a GPU")
    parser.add_argument(
        "--threads", type=whole_number(1, MOST_THREADS), metavar="N", help="threads of one execution on a CPU"
    )
    parser.add_argument(
        "--calibrate",
        type=path,
        metavar="FILE.npz",
        help="rows whose ranges int8-static takes (default: of the samples)",
    )
    parser.add_argument(
        "--samples", type=path, metavar="FILE.npz", help="rows to compare (default: drawn words or random rows)"
    )
    parser.add_argument(
        "--range", action="append", default=[], metavar="NAME=lo:hi", help="values of random rows (repeatable)"
    )
    parser.add_argument(
        "--tolerance",
        type=number(above=0, most=1e6),
        metavar="X",
        help="largest accepted difference, of what an element varies by (default: 0.01 for fp16, 0.2 for int8)",
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NODE",
        help="leave a node in FP32 (its name or output; repeatable)",
    )
    parser.add_argument(
        "--open-dims", metavar="lo:hi", help="smallest and largest size of open dimensions, for TensorRT's profiles"
    )
    parser.add_argument(
        "--engine-cache",
        default="/tmp/tensorrt",
        metavar="FOLDER",
        help="where the server keeps TensorRT's engines (default: /tmp/tensorrt)",
    )
    repository.add_option(parser)
    parser.add_argument("--force", action="store_true", help="replace a model of the same name")
    return parser


if __name__ == "__main__":
    sys.exit(main())
