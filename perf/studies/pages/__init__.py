"""The tables of results in the Markdown pages, made from the records in git."""
