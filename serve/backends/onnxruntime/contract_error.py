"""The error of a model whose graph and configuration disagree."""


class ContractError(ValueError):
    """The graph and the configuration disagree, so the model must not load."""
