"""The memory of an ONNX model at each batch size: onnxruntime's allocation plan and arena, simulated without a run."""
