"""Locality of a replay: how much of what is touched a small cache would still hold.

Every buffer is touched twice, page by page: written when it is allocated, read for the last time when it is freed. The
cache keeps the pages touched last (LRU), and its size is a share of the trace's live peak, so that traces of any size
can be compared. An allocator that hands out memory that was just freed scores high; one that walks through fresh
addresses low.
"""

from collections import OrderedDict

from perf.memory.replay import Replay

CACHE_SHARE = 0.25
# Pages of the live peak: fine enough for shares, and few enough for a replay of thousands of buffers.
PAGES = 1024
LEAST_PAGE_BYTES = 256


def locality(found: Replay, live_peak_bytes: int, cache_share: float = CACHE_SHARE) -> float:
    """Share of the page touches, 0 to 1, that hit an LRU cache of `cache_share` x the live peak."""
    page = max(LEAST_PAGE_BYTES, 1 << (live_peak_bytes // PAGES).bit_length())
    room = max(1, int(cache_share * live_peak_bytes / page))
    order = [(one.start, 1, one.address, one.size) for one in found.placed]
    order += [(one.end, 0, one.address, one.size) for one in found.placed]
    cache: OrderedDict[int, None] = OrderedDict()
    hits = touches = 0
    for _, _, address, size in sorted(order):
        for number in range(address // page, (address + size - 1) // page + 1):
            touches += 1
            if number in cache:
                hits += 1
                cache.move_to_end(number)
                continue
            cache[number] = None
            if len(cache) > room:
                cache.popitem(last=False)
    return hits / touches if touches else 0.0
