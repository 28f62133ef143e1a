"""How much memory a model holds under onnxruntime, and offset plans for memory."""
