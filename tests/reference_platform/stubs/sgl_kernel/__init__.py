"""An import-only stand-in for sgl-kernel, any module and any name of it. Nothing of it can be called."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

__version__ = "0.0.0+stub"
__path__: list[str] = []


class Missing:
    """What every name is bound to."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"{self.__name__} was called, but it is a stub on this machine")

    def __getattr__(self, name):
        return missing_in(self.__name__)(name)

    def __repr__(self):
        return f"<stub {self.__name__}>"


def missing_in(owner):
    """A module's `__getattr__`: every name but the ones that Python itself asks for."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{owner}.{name}")

    return __getattr__


class _Submodules(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def exec_module(self, module):
        module.__getattr__ = missing_in(module.__name__)


sys.meta_path.append(_Submodules())
__getattr__ = missing_in(__name__)
