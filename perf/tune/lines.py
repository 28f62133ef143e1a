"""What is going on, as plain lines for an output that is no terminal: one for each phase, not for each step in it."""

import re

from rich.console import Console

# A step of a phase says how far it is; other numbers of one and the same phase are counts too.
SHARE, NUMBER = re.compile(r"\(\d+%\)$"), re.compile(r"\d[\d.,]*")


class Lines:
    """Prints a text where it is another phase than the last: other words, whatever the numbers in them."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, ""

    def tell(self, text: str) -> None:
        """One more text of the progress."""
        phase = NUMBER.sub("", text)
        if SHARE.search(text) or phase == self._last:
            return
        self._last = phase
        self._console.print(text, markup=False, soft_wrap=True)
