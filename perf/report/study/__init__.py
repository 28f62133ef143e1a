"""One page for a whole study: ten parts, each a function of the records, in a file of its own."""
