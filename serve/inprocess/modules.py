"""Loads a model.py and the modules beside it privately: each model instance gets modules of its own.

A model.py imports its neighbours by flat names, such as `import session`. These names resolve to its own folder, so a
user's module of the same name neither replaces one nor is replaced, and `sys.path` stays as it is.
"""

import builtins
import functools
import itertools
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from serve import vendor

_NUMBERS = itertools.count(1)


class PrivateModules:
    """The modules of one folder. `given` are modules that replace others of the same name."""

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        self._folder, self._given = folder, given
        self._prefix = f"{__name__}.{next(_NUMBERS)}"
        self._loaded: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def load(self, name: str) -> ModuleType:
        """The module of this flat name; runs its file the first time."""
        if name in self._loaded:
            return self._loaded[name]
        file = self._file(name)
        module = ModuleType(f"{self._prefix}.{name}")
        vars(module).update(__file__=str(file), __package__="", __builtins__=self._builtins)
        # Its dataclasses look it up in sys.modules while it runs, and modules may import one another.
        self._loaded[name] = sys.modules[module.__name__] = module
        try:
            exec(_code(file, file.stat().st_mtime_ns), vars(module))
        except BaseException:
            del self._loaded[name]
            raise
        finally:
            del sys.modules[module.__name__]
        return module

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name in self._given:
            return self._given[name]
        if level == 0 and self._has(name):
            return self.load(name)
        return builtins.__import__(name, globals, locals, fromlist, level)

    def _has(self, name: str) -> bool:
        """Whether the module is private. As on a server, a module of Python itself wins over a file of its name."""
        if "." in name or name in sys.stdlib_module_names:
            return False
        return name in self._loaded or (self._folder / f"{name}.py").is_file() or self._is_shared(name)

    def _file(self, name: str) -> Path:
        file = self._folder / f"{name}.py"
        return vendor.sources()[name] if not file.is_file() and self._is_shared(name) else file

    def _is_shared(self, name: str) -> bool:
        """Whether it is one of this project's shared modules, whose copy is not there yet (see serve/vendor.py)."""
        return name in _shared_names() and find_spec(name) is None


@functools.cache
def _shared_names() -> frozenset[str]:
    return frozenset(vendor.sources())


@functools.lru_cache(maxsize=256)
def _code(file: Path, changed_ns: int) -> CodeType:
    """The compiled file; it is compiled again when it has changed."""
    return compile(file.read_bytes(), str(file), "exec")
