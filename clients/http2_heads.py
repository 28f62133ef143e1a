"""The heads of requests and of answers over HTTP/2, as bytes."""

from hpack import Decoder

HEAD_BYTES = 32 << 10
"""The longest head of an answer."""

MOST_HEADS = 256
"""How many heads of answers are remembered."""


def field(name: str, value: str) -> bytes:
    """One field of a request's head, as its own text that the server does not keep."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    content, size = text.encode("latin-1"), bytearray()
    rest = len(content)
    if rest >= 127:  # an integer with a prefix of 7 bits
        size.append(127)
        rest -= 127
        while rest > 127:
            size.append(rest & 127 | 128)
            rest >>= 7
    size.append(rest)
    return bytes(size) + content


class Heads:
    """Reads the heads of answers; `known` holds those that came before, which a server repeats as references."""

    def __init__(self) -> None:
        self._decoder, self.known = Decoder(HEAD_BYTES), dict[bytes, dict[str, str]]()

    def read(self, block: bytes) -> dict[str, str]:
        """The fields of a head; one of references alone leaves the table as it is, so it means the same next time."""
        if (fields := self.known.get(block)) is not None:
            return fields
        fields = {_readable(name): _readable(value) for name, value in self._decoder.decode(block, raw=True)}
        if not block or min(block) < 128 or len(self.known) >= MOST_HEADS:
            self.known.clear()
        else:
            self.known[block] = fields
        return fields


def _readable(text: str | bytes) -> str:
    """A text of a head; one with other bytes than UTF-8 must not end the calls of others."""
    return text if isinstance(text, str) else text.decode(errors="replace")
