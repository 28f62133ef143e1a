"""Blocks of device regions that split, coalesce with their neighbours, and are found by best fit."""

import bisect


class Block:
    """A stretch of one region, free or in use; `before` and `after` are its neighbours in that region."""

    __slots__ = ("address", "after", "before", "free", "size")

    def __init__(self, address: int, size: int, before: "Block | None" = None, after: "Block | None" = None) -> None:
        self.address = address
        self.size = size
        self.free = True
        self.before = before
        self.after = after

    @property
    def split(self) -> bool:
        """Whether it is only part of its region."""
        return self.before is not None or self.after is not None


class Blocks:
    """All blocks of an allocator. The free ones are kept by (size, address), the order of best fit.

    Frameworks keep them in bins by power of two, each in this order, and scan the bins upward. Bins divide the sizes
    without overlap, so that scan finds exactly the first block at or above a size in one list over all bins.
    """

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self._at: dict[int, Block] = {}

    def __getitem__(self, address: int) -> Block:
        return self._at[address]

    def add(self, address: int, size: int) -> Block:
        """A new region, one free block."""
        block = self._at[address] = Block(address, size)
        bisect.insort(self.free, (size, address))
        return block

    def smallest(self, size: int) -> Block | None:
        """Best fit: the smallest free block of at least `size` bytes, the lowest among equals."""
        place = bisect.bisect_left(self.free, (size, 0))
        return self._at[self.free[place][1]] if place < len(self.free) else None

    def take(self, block: Block, size: int | None = None) -> Block:
        """Put a free block in use; with `size`, its head, and the rest becomes a free block."""
        self._forget(block)
        block.free = False
        if size is not None and size < block.size:
            rest = Block(block.address + size, block.size - size, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.after = self._at[rest.address] = rest
            block.size = size
            bisect.insort(self.free, (rest.size, rest.address))
        return block

    def release(self, block: Block) -> Block:
        """Free a block that was in use: the block it has become, together with its free neighbours."""
        if block.free:
            raise KeyError(block.address)
        block.free = True
        if block.after is not None and block.after.free:
            self._forget(block.after)
            self._absorb(block)
        if block.before is not None and block.before.free:
            block = block.before
            self._forget(block)
            self._absorb(block)
        bisect.insort(self.free, (block.size, block.address))
        return block

    def resize(self, block: Block, size: int) -> None:
        """Give a free last block of a region another size."""
        self._forget(block)
        block.size = size
        bisect.insort(self.free, (size, block.address))

    def remove(self, block: Block) -> None:
        """Forget a free block, because its memory went back to the device."""
        self._forget(block)
        del self._at[block.address]
        if block.before is not None:
            block.before.after = block.after
        if block.after is not None:
            block.after.before = block.before

    def _forget(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, (block.size, block.address))]

    def _absorb(self, block: Block) -> None:
        gone = block.after
        assert gone is not None
        block.size += gone.size
        block.after = gone.after
        if gone.after is not None:
            gone.after.before = block
        del self._at[gone.address]
