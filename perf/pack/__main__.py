"""`python -m perf.pack`: see perf.pack.command, which is imported when it runs."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Pack; exit codes as in `perf.pack.command.main`."""
    from perf.pack.command import main as command

    return command(argv)


if __name__ == "__main__":
    sys.exit(main())
