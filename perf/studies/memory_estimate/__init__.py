"""Checks of the memory estimate against real runs of onnxruntime, byte by byte."""
