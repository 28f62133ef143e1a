"""What an ONNX model holds in memory at each batch size: onnxruntime's plan and its arena, simulated without a run."""
