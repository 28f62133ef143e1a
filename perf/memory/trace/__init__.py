"""Traces of memory allocations: the type, its file, and the reader of onnxruntime profiles."""
