"""From a PyTorch or numpy model to an ONNX file in the model repository, with a proven batch axis."""
