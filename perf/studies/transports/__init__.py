"""Shared memory against gRPC and HTTP."""
