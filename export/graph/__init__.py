"""ONNX graphs: reads them, proves or makes their batch axis, and checks them against config.pbtxt."""
