"""The BFC arena of onnxruntime and TensorFlow, simulated over a device that counts what it gives out."""
