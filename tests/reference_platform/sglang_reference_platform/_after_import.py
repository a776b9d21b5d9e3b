"""Calls a function right after a module was first executed. Standard library only."""

import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

Adaptation = Callable[[ModuleType], None]


class AfterImport:
    """A `sys.meta_path` finder that lets the others find the module and adds the call to its loader."""

    def __init__(self, adaptations: dict[str, Adaptation]) -> None:
        self._adaptations = adaptations
        self._local = threading.local()

    def find_spec(self, name, path=None, target=None):
        adapt = self._adaptations.get(name)
        # Other finders of this kind look the module up through sys.meta_path again, and so through this one.
        if adapt is None or getattr(self._local, "finding", None) == name:
            return None
        self._local.finding = name
        try:
            spec = self._ask_the_others(name, path, target)
        finally:
            self._local.finding = None
        if spec is not None and spec.loader is not None:
            spec.loader = _Adapting(spec.loader, adapt)
        return spec

    def _ask_the_others(self, name, path, target) -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Adapting:
    """A loader that adapts the module once the loader behind it has executed it."""

    def __init__(self, loader, adapt: Adaptation) -> None:
        self._loader, self._adapt = loader, adapt

    def create_module(self, spec: ModuleSpec) -> "ModuleType | None":
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._adapt(module)

    def __getattr__(self, name: str):
        return getattr(self._loader, name)  # get_source, get_data, ...


def after_import(adaptations: dict[str, Adaptation]) -> None:
    """Apply each adaptation now if its module is loaded, else as soon as it is."""
    pending = {}
    for name, adapt in adaptations.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            adapt(module)
        else:
            pending[name] = adapt
    if pending:
        sys.meta_path.insert(0, AfterImport(pending))
