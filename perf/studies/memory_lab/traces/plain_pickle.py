"""A safe unpickler of plain data: containers, numbers and strings. It imports and calls nothing.

The standard library's `pickletools.genops` splits the opcodes without running them.
"""

import io
import pickletools
from collections.abc import Callable
from typing import Any

from triton_batching.terminal import Mistake

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# Opcodes whose argument is the value.
LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
NOTHING = {"PROTO", "FRAME"}


class PickleError(Mistake):
    """The bytes are not a pickle of plain data; the text names the byte position."""


class _Mark:
    """Marks the start of a run of items on the stack."""


def loads(data: bytes, origin: str = "pickle") -> Any:
    """The value of a pickle; raises `PickleError` for all other bytes."""
    machine, stream, position = _Machine(), io.BytesIO(data), 0
    steps = pickletools.genops(stream)
    while True:
        try:
            opcode, argument, place = next(steps)
        except StopIteration:
            break
        except (ValueError, UnicodeError, OverflowError, MemoryError) as error:
            position = stream.tell()
            raise PickleError(
                f"{origin}: byte {position}: incomplete or broken pickle: {error}. Write it again."
            ) from error
        position = place or 0
        try:
            machine.step(opcode.name, argument)
        except _RefusedError as error:
            raise PickleError(
                f"{origin}: byte {position}: {opcode.name} ({_short(argument)}) {error}, and this reader runs no code. "
                "Give a snapshot as torch.cuda.memory._dump_snapshot writes it."
            ) from error
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise PickleError(
                f"{origin}: byte {position}: {opcode.name} does not fit the opcodes before it. The pickle is broken."
            ) from error
    if len(machine.stack) != 1 or isinstance(machine.stack[0], _Mark):
        raise PickleError(f"{origin}: byte {position}: the pickle has {len(machine.stack)} values instead of one.")
    return machine.stack[0]


class _RefusedError(Exception):
    """An opcode that makes an object."""


class _Machine:
    """The pickle machine, reduced to plain values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in LITERALS:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in EMPTY:
            self.stack.append(EMPTY[name]())
        elif name in SHORT_TUPLES:
            self.stack.append(tuple(self._popped(SHORT_TUPLES[name])))
        elif name not in NOTHING:
            action = getattr(self, f"do_{name.lower()}", None)
            if action is None:
                raise _RefusedError("makes an object or calls a function")
            action(argument)

    def do_mark(self, _: Any) -> None:
        self.stack.append(_Mark())

    def do_stop(self, _: Any) -> None:
        """Do nothing: this opcode is the last."""

    def do_pop(self, _: Any) -> None:
        self.stack.pop()

    def do_pop_mark(self, _: Any) -> None:
        self._run()

    def do_dup(self, _: Any) -> None:
        self.stack.append(self._top(object))

    def do_list(self, _: Any) -> None:
        self.stack.append(self._run())

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._run()))

    def do_dict(self, _: Any) -> None:
        self.stack.append(_pairs(self._run()))

    def do_frozenset(self, _: Any) -> None:
        self.stack.append(frozenset(map(_key, self._run())))

    def do_append(self, _: Any) -> None:
        items = self._popped(1)
        self._top(list).extend(items)

    def do_appends(self, _: Any) -> None:
        items = self._run()
        self._top(list).extend(items)

    def do_additems(self, _: Any) -> None:
        items = self._run()
        self._top(set).update(map(_key, items))

    def do_setitem(self, _: Any) -> None:
        items = self._popped(2)
        self._top(dict).update(_pairs(items))

    def do_setitems(self, _: Any) -> None:
        items = self._run()
        self._top(dict).update(_pairs(items))

    def do_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self._top(object)

    def do_put(self, index: int) -> None:
        self.memo[index] = self._top(object)

    do_binput = do_long_binput = do_put

    def do_get(self, index: int) -> None:
        self.stack.append(self.memo[index])

    do_binget = do_long_binget = do_get

    def _top(self, kind: type[Any]) -> Any:
        if isinstance(self.stack[-1], _Mark) or not isinstance(self.stack[-1], kind):
            raise TypeError
        return self.stack[-1]

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        items = self.stack[-count:]
        if any(isinstance(item, _Mark) for item in items):
            raise TypeError
        del self.stack[-count:]
        return items

    def _run(self) -> list[Any]:
        """The items above the last mark."""
        items: list[Any] = []
        while not isinstance(item := self.stack.pop(), _Mark):
            items.append(item)
        return items[::-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(map(_key, items[::2]), items[1::2], strict=True))


def _key(value: Any) -> Any:
    """A scalar: the hash of tuples nested a million deep would overflow the C stack."""
    if not isinstance(value, int | float | str | bytes | None):
        raise TypeError
    return value


def _short(argument: Any) -> str:
    text = repr(argument)
    return text if len(text) <= 60 else f"{text[:57]}..."
