"""The page of a study: ten parts, each a function of its records."""
