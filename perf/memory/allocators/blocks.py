"""Blocks of device regions: they split, merge with free neighbours, and are searched by best fit."""

import bisect


class Block:
    """A part of a region, free or in use; `before` and `after` are its neighbours in that region."""

    __slots__ = ("address", "after", "before", "free", "size")

    def __init__(self, address: int, size: int, before: "Block | None" = None, after: "Block | None" = None) -> None:
        self.address = address
        self.size = size
        self.free = True
        self.before = before
        self.after = after

    @property
    def split(self) -> bool:
        """Whether the block is only part of its region."""
        return self.before is not None or self.after is not None


class Blocks:
    """All blocks of an allocator; the free ones are sorted by (size, address), the order of best fit.

    Frameworks sort free blocks into bins by power of two and scan the bins upward. Bins do not overlap, so one sorted
    list finds the same block.
    """

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self._at: dict[int, Block] = {}

    def __getitem__(self, address: int) -> Block:
        return self._at[address]

    def add(self, address: int, size: int) -> Block:
        """Add a region as one free block."""
        block = self._at[address] = Block(address, size)
        bisect.insort(self.free, (size, address))
        return block

    def smallest(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes, the lowest address among equals; None if there is none."""
        place = bisect.bisect_left(self.free, (size, 0))
        return self._at[self.free[place][1]] if place < len(self.free) else None

    def take(self, block: Block, size: int | None = None) -> Block:
        """Mark a free block as used; with `size`, only its first bytes, and the rest becomes a new free block."""
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
        """Free a used block and merge it with its free neighbours; returns the merged block."""
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

    def remove(self, block: Block) -> None:
        """Remove a free block whose memory went back to the device."""
        self._forget(block)
        del self._at[block.address]
        if block.before is not None:
            block.before.after = block.after
        if block.after is not None:
            block.after.before = block.before

    def _forget(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, (block.size, block.address))]

    def _absorb(self, block: Block) -> None:
        absorbed = block.after
        assert absorbed is not None
        block.size += absorbed.size
        block.after = absorbed.after
        if absorbed.after is not None:
            absorbed.after.before = block
        del self._at[absorbed.address]
