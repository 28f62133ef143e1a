"""Graphs: an ONNX file or a torch module in, a graph with a proven batch axis out."""
