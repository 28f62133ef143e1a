"""`python -m perf.tune`: see perf.tune.command.

It is imported late because the processes that send load import this file, too, and need nothing of it.
"""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run `perf.tune.command.main`; the exit codes are its own."""
    from perf.tune.command import main as command

    return command(argv)


if __name__ == "__main__":
    sys.exit(main())
