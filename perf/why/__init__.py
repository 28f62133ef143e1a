"""Explains why batches do not form: replays the batcher on a request mix, or on the requests of a running server."""
