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
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                adapt(module)

            spec.loader.exec_module = exec_module  # a loader instance serves one module only
        return spec

    def _ask_the_others(self, name, path, target) -> "ModuleSpec | None":
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


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
