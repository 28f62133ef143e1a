"""The terminal that the programs print to: tables for people, and one plain line for each mistake."""

from rich.console import Console


def terminal() -> Console:
    """A console that prints names, paths and numbers as they are (no `:end:` turned into a picture)."""
    return Console(soft_wrap=True, highlight=False, emoji=False)


def complain(console: Console, message: object) -> None:
    """Print a mistake or a failure, in red where there is colour."""
    console.print(str(message), style="red", markup=False)
