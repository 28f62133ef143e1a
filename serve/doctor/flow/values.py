"""What is known of a value in a model.py: its kind, and the length of a list."""

import ast
from dataclasses import dataclass, replace
from enum import Enum, auto


@dataclass(frozen=True, kw_only=True)
class Size:
    """A sum: `ones`, plus multiples of the number of requests, of the rows of the batch and of those of one request."""

    ones: int = 0
    requests: int = 0
    rows: int = 0
    own: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(
            ones=self.ones + other.ones,
            requests=self.requests + other.requests,
            rows=self.rows + other.rows,
            own=self.own + other.own,
        )

    def __sub__(self, other: "Size") -> "Size":
        return self + other.times(-1)

    def times(self, factor: int) -> "Size":
        """Every part multiplied."""
        return Size(
            ones=self.ones * factor, requests=self.requests * factor, rows=self.rows * factor, own=self.own * factor
        )

    @property
    def is_constant(self) -> bool:
        """Whether it is the same for every batch."""
        return not (self.requests or self.rows or self.own)

    def over(self, loop: "Size") -> "Size | None":
        """The sum over a loop of this length; None if it is not known."""
        if loop.is_constant:
            return self.times(loop.ones)
        if self == Size():
            return self
        if loop == REQUESTS and not (self.requests or self.rows):
            return Size(requests=self.ones, rows=self.own)
        return loop.times(self.ones) if self.is_constant else None


ONE = Size(ones=1)
REQUESTS = Size(requests=1)
ROWS = Size(rows=1)
OWN_ROWS = Size(own=1)


class Kind(Enum):
    """What a value is."""

    ANY = auto()  # anything, also a value of an earlier pass of a loop
    UNKNOWN = auto()  # the result of code that the doctor does not know
    CONSTANT = auto()
    LIST = auto()  # a list or another sequence
    TUPLE = auto()  # of known members
    NUMBER = auto()  # a length
    INDEX = auto()  # the number of a request in the batch
    SHARE = auto()  # the rows of the batch divided by its requests
    REQUEST = auto()
    TENSOR = auto()  # of one request
    ARRAY = auto()  # the rows of one request
    JOINED = auto()  # the rows of all requests
    RESPONSE = auto()  # `item` is JOINED if it holds the rows of all requests
    CALL = auto()  # a request to another model
    PENDING = auto()  # such a request that was sent and is not awaited yet
    NETWORK = auto()
    FUNCTION = auto()


@dataclass(frozen=True, kw_only=True)
class Value:
    """What is known of a value.

    `size` is the length of a list, or the number itself; None if it is not known. `sizes` are the numbers of items that
    the paths through `loop` add, if they differ. `is_own` says that it depends on one request, `is_of_batch` that it
    depends on how many requests there are, `is_first` that it comes from one row of a request that may have several.
    """

    kind: Kind
    size: Size | None = None
    item: "Value | None" = None
    items: "tuple[Value, ...]" = ()
    constant: object = None
    is_own: bool = False
    is_of_batch: bool = False
    is_first: bool = False
    sizes: frozenset[Size] = frozenset()
    loop: ast.AST | None = None
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None

    @property
    def length(self) -> Size | None:
        """How often a loop over it runs; None if that is not known."""
        if self.kind is Kind.JOINED:
            return ROWS
        if self.kind is Kind.ARRAY:
            return OWN_ROWS
        if self.kind is Kind.TUPLE:
            return Size(ones=len(self.items))
        return self.size if self.kind is Kind.LIST else None

    @property
    def element(self) -> "Value":
        """An item of it."""
        if self.kind is Kind.LIST and self.item is not None:
            return UNKNOWN if self.item.kind is Kind.PENDING else self.item
        is_own = self.is_own or self.kind in (Kind.JOINED, Kind.ARRAY)
        return Value(kind=Kind.UNKNOWN, is_own=is_own)

    @property
    def is_none(self) -> bool:
        """Whether it is None for certain."""
        return self.kind is Kind.CONSTANT and self.constant is None

    def added(self, size: Size | None, item: "Value | None") -> "Value":
        """The list with more items."""
        total = self.size + size if self.size is not None and size is not None else None
        kept = item if self.item is None else joined([self.item, item or UNKNOWN])
        is_of_batch = bool(total and total.requests)
        return replace(self, size=total, item=kept, is_of_batch=is_of_batch, sizes=frozenset(), loop=None)


ANY = Value(kind=Kind.ANY)
UNKNOWN = Value(kind=Kind.UNKNOWN)
OWN = Value(kind=Kind.UNKNOWN, is_own=True)
JOINED = Value(kind=Kind.JOINED)
RESPONSE = Value(kind=Kind.RESPONSE)
CALL = Value(kind=Kind.CALL, is_own=True)
PENDING = Value(kind=Kind.PENDING, is_own=True)
REQUEST = Value(kind=Kind.REQUEST, is_own=True)
TENSOR = Value(kind=Kind.TENSOR, is_own=True)
ARRAY = Value(kind=Kind.ARRAY, is_own=True)
INDEX = Value(kind=Kind.INDEX, is_of_batch=True)
SHARE = Value(kind=Kind.SHARE, is_of_batch=True)
NETWORK = Value(kind=Kind.NETWORK)
SOME = frozenset({Size(), ONE})


def holds_all(value: Value) -> bool:
    """Whether a response holds the rows of all requests."""
    return value.kind is Kind.RESPONSE and value.item == JOINED


def constant(value: object) -> Value:
    """A constant; its size as a number is known too."""
    size = Size(ones=value) if isinstance(value, int) and not isinstance(value, bool) else None
    return Value(kind=Kind.CONSTANT, constant=value, size=size)


def sequence(size: Size | None, item: Value | None = None) -> Value:
    """A list of this length."""
    return Value(kind=Kind.LIST, size=size, item=item, is_of_batch=bool(size and size.requests))


def number(size: Size) -> Value:
    """A length."""
    if size.is_constant:
        return constant(size.ones)
    return Value(kind=Kind.NUMBER, size=size, is_of_batch=bool(size.requests), is_own=bool(size.own))


def some(loop: ast.AST | None, item: Value | None = None) -> Value:
    """A list for some of the requests only; `loop` leaves the others out."""
    return Value(kind=Kind.LIST, item=item, sizes=SOME, loop=loop)


def members(*values: Value) -> Value:
    """A tuple."""
    return Value(kind=Kind.TUPLE, items=values, is_own=any(value.is_own for value in values))


def mixed(values: list[Value]) -> Value:
    """The result of unknown code with these arguments."""
    own = [part for value in values for part in _own_parts(value)]
    return Value(
        kind=Kind.UNKNOWN,
        is_own=bool(own),
        is_of_batch=any(value.is_of_batch for value in values),
        is_first=bool(own) and all(part.is_first for part in own),
    )


def _own_parts(value: Value) -> list[Value]:
    """What of a value depends on one request; a list with one item is that item."""
    if value.kind is Kind.LIST and value.item is not None:
        is_one = value.size == ONE
        return [replace(part, is_first=part.is_first and is_one) for part in _own_parts(value.item)]
    if value.kind is Kind.TUPLE:
        return [part for item in value.items for part in _own_parts(item)]
    return [value] if value.is_own else []


def joined(values: list[Value]) -> Value:
    """A value that is one of these."""
    first, *others = values
    if all(other == first for other in others):
        return first
    if all(value.kind is Kind.TUPLE and len(value.items) == len(first.items) for value in values):
        return members(*(joined([value.items[at] for value in values]) for at in range(len(first.items))))
    if all(value.kind is Kind.LIST for value in values):
        items = [value.item for value in values if value.item is not None]
        same = all(value.size == first.size for value in values)
        return sequence(first.size if same else None, joined(items) if items else None)
    is_own, is_first = any(value.is_own for value in values), all(value.is_first for value in values)
    return Value(kind=Kind.ANY, is_own=is_own, is_first=is_first)
