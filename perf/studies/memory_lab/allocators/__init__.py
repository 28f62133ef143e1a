"""Allocators that the lab replays: those of frameworks and textbooks, and one that follows an offset plan."""
