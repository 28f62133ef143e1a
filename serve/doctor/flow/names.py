"""What the names in a model.py stand for: imports, functions, networks and connections."""

import ast
from collections.abc import Container
from functools import cached_property

from serve.doctor.flow.state import dotted
from serve.doctor.python_file import PythonFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
NETWORK_NAMES = ("model", "session", "sess", "net", "network", "backbone", "classifier", "detector", "pipeline", "pipe")
"""The last words of the names of networks that the file does not make itself."""
MAKERS = (
    "InferenceSession", "SentenceTransformer", "CrossEncoder", "WhisperModel", "YOLO", "torch.load", "torch.jit.load",
    "torch.export.load", "torch.hub.load", "torch.compile", "load_model", "saved_model.load", "pipeline",
    "create_model", "Interpreter", "joblib.load", "Booster",
)  # fmt: skip
NOT_NETWORKS = ("Client", "Tokenizer", "Processor", "FeatureExtractor", "Config", "Tokenizer.from_pretrained")
BLOCKING = (
    "time.sleep", "urllib.request.urlopen", "urllib.request.urlretrieve", "wget.download",
)  # fmt: skip
VERBS = ("get", "post", "put", "patch", "delete", "head", "request")
KEEPING = ("no_grad", "inference_mode", "staticmethod", "classmethod", "autocast", "override")


class Names:
    """Looks up names of one file."""

    def __init__(self, file: PythonFile) -> None:
        self._file = file

    @cached_property
    def _imports(self) -> dict[str, str]:
        """What each imported name stands for, anywhere in the file."""
        found = {}
        for node in ast.walk(self._file.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found

    @cached_property
    def _functions(self) -> dict[str, Function]:
        return {node.name: node for node in self._file.tree.body if isinstance(node, Function)}

    @cached_property
    def _assigned(self) -> dict[str, list[ast.expr]]:
        """The values of module-level names and of attributes of self."""
        found: dict[str, list[ast.expr]] = {}
        model = self._file.model_class()
        nodes = [*self._file.tree.body, *(ast.walk(model) if model is not None else ())]
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    is_own = isinstance(target, ast.Attribute) or node in self._file.tree.body
                    if is_own and (name := dotted(target)):
                        found.setdefault(name, []).append(node.value)
        return found

    @cached_property
    def _modules(self) -> set[str]:
        """The classes of the file that are modules of torch, or hold a session."""
        classes = (node for node in ast.walk(self._file.tree) if isinstance(node, ast.ClassDef))
        words = ("InferenceSession", "nn.Module", "torch.load", "torch.jit.load")
        return {node.name for node in classes if any(word in ast.unparse(node) for word in words)}

    def function(self, called: ast.expr) -> Function | None:
        """The function of this file that a call runs; None for other code."""
        name = dotted(called)
        if name is None and isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            name = f"self.{called.attr}" if called.value.id in ("TritonPythonModel", "cls") else None
        if name is None:
            return None
        method = name.removeprefix("self.")
        found = self._file.method(method) if name.startswith("self.") else self._functions.get(name)
        if found is None:
            return None
        return found if all(_keeps(decorator) for decorator in found.decorator_list) else None

    def full_name(self, called: ast.expr, bound: Container[str] = ()) -> str:
        """The dotted name of a called function with its module, for example "time.sleep"; "" if it has none."""
        if isinstance(called, ast.Name):
            return "" if called.id in bound else self._imports.get(called.id, called.id)
        if isinstance(called, ast.Attribute):
            before = self.full_name(called.value, bound)
            return f"{before}.{called.attr}" if before else ""
        return ""

    def is_network(self, name: str) -> bool:
        """Whether a name, "x" or "self.x", stands for a neural network or another model."""
        values = [value for value in self._assigned.get(name, []) if not isinstance(value, ast.Constant)]
        made = [self._maker(value) for value in values]
        if any(word in maker for maker in made for word in NOT_NETWORKS):
            return False
        if any(any(word == maker or maker.endswith((f".{word}", word)) for word in MAKERS) for maker in made):
            return True
        if any(_is_pretrained(maker) or maker in self._modules for maker in made):
            return True
        if not name.startswith("self.") and not values:
            return False
        return name.rpartition(".")[2].strip("_").rpartition("_")[2].lower() in NETWORK_NAMES

    def _maker(self, value: ast.expr) -> str:
        """The function whose result a value is, before .to(), .eval() and the like."""
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Call() as before)):
                return self._maker(before)
            case ast.Call(func=called):
                return self.full_name(called)
            case ast.Subscript(value=before) | ast.Attribute(value=before):
                return self._maker(before)
            case ast.Dict(values=[first, *_]) | ast.List(elts=[first, *_]):
                return self._maker(first)
            case ast.ListComp(elt=each) | ast.DictComp(value=each):
                return self._maker(each)
        return ""

    def _root(self, called: ast.expr) -> str:
        while isinstance(called, ast.Attribute):
            called = called.value
        return called.id if isinstance(called, ast.Name) else ""

    def blocks(self, called: ast.expr, bound: Container[str]) -> str:
        """The name of a function that waits, for example "time.sleep"; "" for others."""
        name = self.full_name(called, bound)
        module, _, verb = name.rpartition(".")
        if name in BLOCKING or (module in ("requests", "httpx") and verb in VERBS):
            return name if self._root(called) in self._imports else ""
        return ""


def _is_pretrained(maker: str) -> bool:
    is_layer = maker.startswith("torch.nn.") or ".models." in maker
    return is_layer or maker.endswith((".from_pretrained", ".load_from_checkpoint"))


def _keeps(decorator: ast.expr) -> bool:
    """Whether a decorated function does and returns the same."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in KEEPING
