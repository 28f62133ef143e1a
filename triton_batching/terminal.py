"""The terminal that the programs print to, and the two kinds of error that end them with one clear line.

Mistake   the user's: exit code 2
Failure   of something else, a server or a proof: exit code 1
"""

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import TYPE_CHECKING

# rich takes 50 ms to import, and `--help` does not need it.
if TYPE_CHECKING:
    from rich.console import Console

# The width of tables in a file or a pipe: no name is cut.
FILE_COLUMNS = 200
_name = ""


class Mistake(Exception):  # noqa: N818 - it is what the user made
    """Bad input: the text says where, what was found, what it means and what to do."""


class Failure(Exception):  # noqa: N818
    """Something that the user did not cause went wrong; the text holds what is known about it."""


def terminal() -> "Console":
    """A console that prints names, paths and numbers as they are (no `:end:` turned into a picture)."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_COLUMNS
    return Console(soft_wrap=True, highlight=False, emoji=False, width=width)


def complain(message: object) -> None:
    """Print a mistake or a failure to standard error, in red if the terminal has colours."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    console.print(str(message), style="red", markup=False)


def name_programs(name: str) -> None:
    """Call the program that runs next by this name in its help and its errors, in place of `python -m MODULE`."""
    global _name
    _name = name


def program_parser(name: str, description: str | None, *, example: str) -> ArgumentParser:
    """The command line parser of a program, with its module's text above the options and an example below them."""
    name = _name or name
    return ArgumentParser(
        prog=name,
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        epilog=f"example: {name} {example}",
    )


def guarded(action: Callable[[], int | None], *, on_interrupt: str = "stopped.") -> int:
    """Run a program's `action`: its exit code (None is 0), 2 for a mistake, 1 for a failure, 130 after Ctrl-C."""
    try:
        return action() or 0
    except Mistake as mistake:
        complain(mistake)
        return 2
    except Failure as failure:
        complain(failure)
        return 1
    except Exception as error:
        # The errors of `clients`, which imports no other stage.
        if not isinstance(code := getattr(error, "exit_code", None), int):
            raise
        complain(error)
        return code
    except KeyboardInterrupt:
        complain(on_interrupt)
        return 130
