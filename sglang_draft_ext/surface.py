"""What an SGLang release looks like, read from its source without importing it.

Hooks are verified against this, so a launch can be refused before anything heavy is imported or any model is loaded, and
so the doctor can look at a release on a machine that could never run it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

Function = ast.FunctionDef | ast.AsyncFunctionDef
Kind = Literal["function", "class", "list", "tuple", "dict", "set", "value", "import"]
_LITERALS: dict[type[ast.expr], Kind] = {
    ast.List: "list",
    ast.Tuple: "tuple",
    ast.Dict: "dict",
    ast.Set: "set",
}


@dataclass(frozen=True)
class Definition:
    """One name bound in a module or class."""

    kind: Kind
    node: ast.AST

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameter names of a function, in order, without ``*args`` and ``**kwargs``."""
        if not isinstance(self.node, Function):
            return ()
        arguments = self.node.args
        return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))

    @property
    def returns(self) -> tuple[ast.expr, ...]:
        """The values that a function returns, without those of functions nested in it."""
        return tuple(n.value for n in _own(self.node) if isinstance(n, ast.Return) and n.value)

    @property
    def does_something(self) -> bool:
        """Whether the body of a function is more than a docstring."""
        body = self.node.body if isinstance(self.node, Function) else []
        return any(not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in body)

    @property
    def constants(self) -> tuple[tuple[str, ...], ...]:
        """Every tuple or list of string literals in the body."""
        found = (_strings(node) for node in ast.walk(self.node))
        return tuple(strings for strings in found if strings)

    @property
    def decorations(self) -> tuple[str, ...]:
        """The string literals given to the decorators of a function, as in ``@register("name")``."""
        calls = getattr(self.node, "decorator_list", ())
        given = (argument for call in calls for argument in getattr(call, "args", ()))
        return tuple(a.value for a in given if isinstance(a, ast.Constant) and isinstance(a.value, str))

    @property
    def mentions(self) -> frozenset[str]:
        """Every bare name that the body uses."""
        return frozenset(node.id for node in ast.walk(self.node) if isinstance(node, ast.Name))

    @property
    def keys(self) -> tuple[str, ...]:
        """The string keys of every dict literal in the body."""
        keys = (key for node in ast.walk(self.node) if isinstance(node, ast.Dict) for key in node.keys)
        return tuple(k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*Function.__args__, ast.Lambda)):
            yield child
            yield from _own(child)


def _strings(node: ast.AST) -> tuple[str, ...]:
    if not isinstance(node, (ast.List, ast.Tuple)):
        return ()
    values = [e.value for e in node.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return tuple(values) if values and len(values) == len(node.elts) else ()


class Source:
    """The definitions of one module."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)

    @cached_property
    def _names(self) -> dict[str, Definition]:
        return _definitions(self.tree.body)

    @property
    def definitions(self) -> tuple[Definition, ...]:
        """Everything that the module binds, in order."""
        return tuple(self._names.values())

    def get(self, dotted: str) -> Definition | None:
        """The definition of ``name`` or ``Class.name``."""
        first, _, rest = dotted.partition(".")
        found = self._names.get(first)
        if found is None or not rest:
            return found
        return _definitions(found.node.body).get(rest) if isinstance(found.node, ast.ClassDef) else None


def _definitions(body: Sequence[ast.stmt]) -> dict[str, Definition]:
    names: dict[str, Definition] = {}
    for node in body:
        if isinstance(node, Function):
            names[node.name] = Definition("function", node)
        elif isinstance(node, ast.ClassDef):
            names[node.name] = Definition("class", node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = Definition("import", node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                # `ServerArgs = defstruct("ServerArgs", ...)` rebinds a class to what is made of it: the class says more.
                if isinstance(target, ast.Name) and not _is_class(names.get(target.id)):
                    names[target.id] = Definition(_LITERALS.get(type(node.value), "value"), node.value)
        elif isinstance(node, (ast.If, ast.Try)):
            for part in (node.orelse, node.body):
                names = (
                    {**_definitions(part), **names}
                    if part is node.orelse
                    else {**names, **_definitions(part)}
                )
    return names


def _is_class(definition: Definition | None) -> bool:
    return definition is not None and definition.kind == "class"


class Surface:
    """A release: its package folder, and the definitions in its modules.

    Args:
        path: ``sglang.__path__``, the folders that hold the release's modules.
        version: What the release calls itself; only ever shown, never compared.
    """

    def __init__(self, path: Sequence[str], version: str) -> None:
        self.path = tuple(path)
        self.version = version
        self._sources: dict[str, Source | None] = {}

    def source(self, module: str) -> Source | None:
        """The source of *module* (``sglang.…``); None where the release has no such module."""
        if module not in self._sources:
            text = self._text(module)
            self._sources[module] = None if text is None else Source(text)
        return self._sources[module]

    def get(self, module: str, dotted: str) -> Definition | None:
        """A definition of *module*; None where the module or the name is missing."""
        source = self.source(module)
        return source.get(dotted) if source else None

    def _text(self, module: str) -> str | None:
        # By path: `find_spec` on a dotted name would import the parent packages.
        inside = Path(*module.split(".")[1:])
        for folder in self.path:
            for file in (Path(folder, inside).with_suffix(".py"), Path(folder, inside, "__init__.py")):
                if file.is_file():
                    return file.read_text(encoding="utf-8")
        return None


def installed_version() -> str:
    """What the installed distribution of SGLang says."""
    # Slow to import, and rarely asked: the package itself has its version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"
