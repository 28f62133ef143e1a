"""Requests of different length for an unmodified encoder, padded by the server, beside the other ways to send them."""
