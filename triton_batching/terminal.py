"""What every program does in a terminal: it reads its command line, prints, and ends with one clear line.

Two kinds of error end a program:

Mistake   the user's: exit code 2
Failure   of something else, a server or a proof: exit code 1
"""

import atexit
import os
import re
import shlex
import signal
import sys
import threading
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

# rich takes 50 ms to import, and `--help` does not need it.
if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from rich.console import Console

# The width of tables in a file or a pipe: no name is cut.
FILE_COLUMNS = 200
INTERRUPTED = 130
# 128 + SIGPIPE, as a shell says of any program whose reader left (`| head`).
CLOSED_PIPE = 141
# What argparse says of a mistake, and what a program says in its place.
PHRASES = (
    (r"argument (\S+): invalid int value: '(.*)'", r"\1 \2: not a whole number."),
    (r"argument (\S+): invalid float value: '(.*)'", r"\1 \2: not a number."),
    (r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", r"\1 \2: not a choice. Give one of \3."),
    (r"argument (\S+): expected one argument", r"\1: its value is missing."),
    (r"argument (\S+): (.*)", r"\1: \2."),
    (r"the following arguments are required: (.*)", r"\1: missing, and required."),
    (r"unrecognized arguments: (.*)", r"\1: unknown."),
)
STOPPING = b"stopping. Ctrl-\\ ends the program at once.\n"
_name = ""
# The program that runs and its arguments, for `again`.
_command: list[str] = []


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

    if sys.stdout is not None:
        with suppress(OSError):
            sys.stdout.flush()  # rich discards it if nobody reads standard error
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    try:
        console.print(str(message), style="red", markup=False)
    except (OSError, SystemExit):  # rich exits if nobody reads, but a program has an exit code of its own
        _discard(sys.stderr)


def name_programs(name: str) -> None:
    """Call the program that runs next by this name in its help and its errors, in place of `python -m MODULE`."""
    global _name
    _name = name


def again(option: str, *values: str, repeatable: bool = False) -> str:
    """The command that runs, with other values of an option, or with more of a repeatable one: what to run instead."""
    pairs = zip(("", *_command), _command, strict=False)
    kept = [word for before, word in pairs if repeatable or option not in (before, word.partition("=")[0])]
    return shlex.join(
        [*kept, *([option] if not values else []), *(word for value in values for word in (option, value))]
    )


class Parser(ArgumentParser):
    """A parser that says what is wrong in one line, without its usage before it."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Read the command line, and keep it for `again`."""
        _command[:] = [*self.prog.split(), *(sys.argv[1:] if args is None else args)]
        return super().parse_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one line that names the argument and what was found, and end with exit code 2."""
        matches = ((re.fullmatch(pattern, message), phrase) for pattern, phrase in PHRASES)
        sentence = next((match.expand(phrase) for match, phrase in matches if match), f"{message}.")
        complain(f"{sentence} See {self.prog} --help.")
        sys.exit(2)

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help; ends the program if that fails, which argparse ignores."""
        if code := guarded(lambda: print(self.format_help(), end="", file=file)):
            sys.exit(code)


def program_parser(name: str, description: str | None, *, example: str) -> ArgumentParser:
    """The command line parser of a program, with its module's text above the options and an example below them."""
    name = _name or name
    return Parser(
        prog=name,
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog=f"example: {name} {example}",
    )


def guarded(
    action: Callable[[], int | None],
    *,
    on_interrupt: str = "stopped.",
    service: bool = False,
) -> int:
    """Run a program's `action`: its exit code (None is 0), 2 for a mistake, 1 for a failure, 130 after Ctrl-C.

    It is 141 if the reader of standard output left, and 2 if the output cannot be written, as on a full disk.
    The first Ctrl-C raises `KeyboardInterrupt` in the action. A `service` also ends by SIGTERM, with 0: a service
    manager that stops it so takes any other code for a failure.
    """
    if sys.stdout is None:  # the caller closed it
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open until the program ends
    with _interrupted_once((signal.SIGINT, signal.SIGTERM) if service else (signal.SIGINT,)) as received:
        try:
            code = _exit_code(action, on_interrupt)
            sys.stdout.flush()
        except OSError as error:
            return _unprinted(error)
        return 0 if service and code == INTERRUPTED and received == [signal.SIGTERM] else code


def _exit_code(action: Callable[[], int | None], on_interrupt: str) -> int:
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
    except SystemExit as end:
        # rich's end when nobody reads its output: code 1, which has a meaning of its own in some programs.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return CLOSED_PIPE
    except KeyboardInterrupt:
        complain(on_interrupt)
        return INTERRUPTED


def _unprinted(error: OSError) -> int:
    """The exit code of a program whose standard output fails; raises `error` if that works."""
    try:
        print(flush=True)
    except BrokenPipeError:
        code = CLOSED_PIPE
    except OSError as problem:
        complain(f"standard output: cannot be written to ({problem.strerror}). Send it to another place.")
        code = 2
    else:
        raise error
    _discard(sys.stdout)
    return code


def _discard(stream: IO[str]) -> None:
    """Let Python write what is left of `stream` to nowhere when it ends, because it would fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _interrupted_once(numbers: Sequence[signal.Signals]) -> Iterator[list[int]]:
    """Let one of these signals raise `KeyboardInterrupt`; later ones interrupt neither the stop nor the exit after it.

    Yields a list, to which the signal that did so is added.

    Each step of a stop has a time limit. A signal that is ignored stays ignored: a shell starts programs in the
    background so.
    """
    ordinary = (signal.SIG_DFL, signal.default_int_handler)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) in ordinary}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if received:
            with suppress(OSError):  # nobody may read standard error any more
                os.write(2, STOPPING)
            return
        received.append(number)
        for caught in before:
            # Python restores the default handlers before it ends.
            atexit.register(signal.signal, caught, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        if not received:
            for number, handler in before.items():
                signal.signal(number, handler)
