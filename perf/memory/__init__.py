"""What models hold in memory: traces of allocations, allocators replayed over them, and offsets planned offline."""
