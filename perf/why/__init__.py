"""Why do my batches not form: the batcher's rules replayed on a request mix, or on what a running server got."""
