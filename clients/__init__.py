"""Everything that speaks the KServe v2 protocol to a server."""
