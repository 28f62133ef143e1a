"""The page of a study: seven parts, each a function of its records."""
