"""Packs many models onto few devices under their latency targets; checks and replays the placement."""
