"""Runs the models of a repository in the caller's own process, without a server, by the same configuration.

with Model("resnet50", transport=serve.inprocess.open("model_repository")) as model:
    logits = model.predict(pixels)
"""

from serve.inprocess.transport import open, open_async

__all__ = ["open", "open_async"]
