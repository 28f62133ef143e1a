"""Small programs that call a server, each in one file to copy; with the pip package import triton_batching_client."""
