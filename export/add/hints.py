"""What `python -m export.add` says beside the proof: where a model file is, and what its user may not expect."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from export.add.deployment import VERSION, Deployment
from export.graph.signature import Signature, Tensor
from export.repository import REPOSITORY


def of(deployment: Deployment, signature: Signature, repository: Path) -> Iterator[str]:
    """The hints on an added model, a line each."""
    fixed = [name for name, tensor in signature.inputs.items() if _has_fixed_length(tensor)]
    if fixed and _is_factory(deployment.source) and not deployment.variable_length:
        size = " and ".join(f"{name} takes {list(signature.inputs[name].shape[1:])} per row" for name in fixed)
        yield (
            f"the length is fixed, as in the example inputs ({size}). If requests differ in length: --variable-length"
        )
    file = next((repository / deployment.name / VERSION).glob("model.*"))
    yield f"the model file is {file}"
    if repository.resolve() == REPOSITORY and _ignored_by_git(file):
        yield (
            "git ignores that file in this project. To keep a model in git: --repository FOLDER, "
            "with a folder of your own"
        )


def _has_fixed_length(tensor: Tensor) -> bool:
    """Whether the input looks like rows of tokens or of vectors, all of one length."""
    after = tensor.shape[1:] if tensor.shape[:1] == (-1,) else ()
    whole = tensor.type.startswith(("TYPE_INT", "TYPE_UINT"))
    return all(dim > 0 for dim in after) and (len(after) == 2 or (len(after) == 1 and whole))


def _is_factory(source: str) -> bool:
    return ":" in source and not Path(source).exists()


def _ignored_by_git(file: Path) -> bool:
    """Whether `git add` of its folder leaves the file out; False outside of git, or without git."""
    try:
        ran = subprocess.run(["git", "check-ignore", "--quiet", file.name], cwd=file.parent, capture_output=True)
    except OSError:
        return False
    return ran.returncode == 0
