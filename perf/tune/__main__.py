"""`python -m perf.tune`: see perf.tune.command, which is imported when it runs.

The processes that send the load import this file again, and need nothing of it.
"""

import sys


def main(argv: list[str] | None = None) -> int:
    """Tune; exit codes as in `perf.tune.command.main`."""
    from perf.tune.command import main as command

    return command(argv)


if __name__ == "__main__":
    sys.exit(main())
