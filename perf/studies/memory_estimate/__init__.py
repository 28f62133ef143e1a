"""Checks of the memory estimate against real runs of onnxruntime, to the byte."""
