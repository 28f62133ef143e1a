"""Models that are added as what they are: TorchScript archives, AOTInductor packages and TensorRT plans."""
