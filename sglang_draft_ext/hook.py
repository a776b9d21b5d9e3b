"""A declared patch point: where it is, how it must look, in which era, and what is done to it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import wrapt

from sglang_draft_ext.surface import Definition, Kind, Surface

Purpose = Literal["backends", "selection"]


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One attribute of one module, how it must look, and what is done to it.

    Args:
        module, attribute: Where, as ``Class.name`` inside a class.
        kind: What the attribute must be.
        parameters: Parameters that a function must have, in this order; further ones are welcome.
        returns: What each ``return`` of a function must give: a ``(stamp, backend)`` pair, or one object.
        tuple_of: Names that one tuple of strings in the function must hold.
        mentions: Names that the function must use.
        wrapper: ``module:attr`` of a wrapt wrapper for a function.
        edit: ``module:attr`` of a function called with the module and the attribute's name, idempotent.
    """

    module: str
    attribute: str
    kind: Kind = "function"
    parameters: tuple[str, ...] = ()
    returns: Literal["pair", "object"] | None = None
    tuple_of: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    wrapper: str | None = None
    edit: str | None = None

    @property
    def target(self) -> str:
        return f"{self.module}:{self.attribute}"

    @property
    def expected(self) -> str:
        """How the attribute must look, in words."""
        text = f"a {self.kind}"
        if self.parameters:
            text += f" with parameters ({', '.join(self.parameters)})"
        if self.returns:
            text += " returning " + ("(stamp, backend) pairs" if self.returns == "pair" else "backends")
        if self.tuple_of:
            text += f" holding a tuple of names with {', '.join(self.tuple_of)}"
        if self.mentions:
            text += f" using {', '.join(self.mentions)}"
        return text

    def mismatch(self, found: Definition | None) -> str | None:
        """What is wrong with *found*, in words; None when it is as expected."""
        if found is None:
            return "nothing of that name"
        if found.kind != self.kind:
            return f"a {found.kind}"
        if not _subsequence(self.parameters, found.parameters):
            return f"parameters ({', '.join(found.parameters)})"
        if self.returns and found.returns:
            pairs = [_is_pair(value) for value in found.returns]
            if not all(pair == (self.returns == "pair") for pair in pairs):
                return "values of another shape"
        if self.tuple_of and not any({*self.tuple_of} <= {*names} for names in found.constants):
            return "no such tuple"
        if not {*self.mentions} <= found.mentions:
            return "other names"
        return None

    def live_mismatch(self, module: ModuleType) -> str | None:
        """The same, asked of the imported module: another patcher may have been there."""
        found: Any = module
        for part in self.attribute.split("."):
            found = inspect.getattr_static(found, part, None)
        if found is None:
            return "nothing of that name"
        if self.kind in ("list", "tuple", "dict"):
            return None if type(found).__name__ == self.kind else f"a {type(found).__name__}"
        function = getattr(found, "__func__", found)
        if not callable(function):
            return f"a {type(found).__name__}"
        parameters = tuple(inspect.signature(function).parameters)
        return None if _subsequence(self.parameters, parameters) else f"parameters ({', '.join(parameters)})"

    def apply(self, module: ModuleType) -> None:
        """Change *module* as declared."""
        if self.wrapper:
            parent, name, _ = wrapt.resolve_path(module, self.attribute)
            original = vars(parent).get(name)
            _wrap(parent, name, _load(self.wrapper))
            if parent is module:
                _replace_copies(original, vars(module)[name])
        if self.edit:
            _load(self.edit)(module, self.attribute)


def _wrap(parent: Any, name: str, wrapper: Callable[..., Any]) -> None:
    raw = vars(parent)[name]
    if type(raw) in (staticmethod, classmethod):
        # SGLang's plugins wrap what they find in `__func__` of such a method: so ours must be there, not around it.
        setattr(parent, name, type(raw)(wrapt.FunctionWrapper(raw.__func__, partial(_method, wrapper))))
    else:
        wrapt.wrap_function_wrapper(parent, name, wrapper)


def _method(
    wrapper: Callable[..., Any],
    wrapped: Callable[..., Any],
    instance: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call *wrapper* the same way whether `classmethod` binds what it holds (up to Python 3.12) or passes the class."""
    if instance is None and args and isinstance(args[0], type):
        instance, args = args[0], args[1:]
        wrapped = partial(wrapped, instance)
    return wrapper(wrapped, instance, args, kwargs)


def _replace_copies(original: object, wrapped: object) -> None:
    """Put *wrapped* where a module of SGLang that was imported earlier has *original* by ``from … import``."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang."):
            for key in [key for key, value in getattr(module, "__dict__", {}).items() if value is original]:
                setattr(module, key, wrapped)


def _is_pair(value: object) -> bool:
    return len(getattr(value, "elts", ())) == 2


def _subsequence(wanted: tuple[str, ...], found: tuple[str, ...]) -> bool:
    rest = iter(found)
    return all(name in rest for name in wanted)


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(f"sglang_draft_ext.patches.{module}"), attribute)


@dataclass(frozen=True, kw_only=True)
class Era:
    """A span of releases in which a point has one shape; without hooks there is nothing to patch in them."""

    name: str
    test: Callable[[Surface], bool]
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    """One thing to be patched.

    Args:
        name: What it is.
        eras: Its shapes, newest first.
        serves: What it is needed for: extra ``backends``, a ``selection``.
        algorithms: The speculative algorithms it is needed for; None means all.
        always: Whether it is patched in a process that asks for nothing, too.
    """

    name: str
    eras: tuple[Era, ...]
    serves: tuple[Purpose, ...] = ("backends",)
    algorithms: tuple[str, ...] | None = None
    always: bool = False

    @property
    def slug(self) -> str:
        """The name as ``SGLANG_DRAFT_EXT_DISABLE`` writes it."""
        return self.name.replace("'", "").replace(" ", "-")

    @property
    def modules(self) -> frozenset[str]:
        """Every module that one of its hooks is in."""
        return frozenset(hook.module for era in self.eras for hook in era.hooks)

    def era(self, surface: Surface) -> Era | None:
        """The era that *surface* belongs to."""
        return next((era for era in self.eras if era.test(surface)), None)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A hook that a release does not match."""

    point: str
    target: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.point} ({self.target}): expected {self.expected}, found {self.found}"


def mismatches(point: Point, surface: Surface) -> Iterator[Mismatch]:
    """Every hook of *point* that *surface* does not match."""
    era = point.era(surface)
    if era is None:
        newest = next(hook for era in point.eras for hook in era.hooks)
        eras = "; ".join(era.name for era in point.eras)
        yield Mismatch(
            point=point.name,
            target=newest.target,
            expected=f"one of the known shapes ({eras})",
            found="none of them",
        )
        return
    for hook in era.hooks:
        found = hook.mismatch(surface.get(hook.module, hook.attribute))
        if found:
            yield Mismatch(point=point.name, target=hook.target, expected=hook.expected, found=found)
