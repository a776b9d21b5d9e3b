"""The names this process was asked for, what they stand for, and the window in which they may be added."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from sglang_draft_ext import _finder, _startup, settings
from sglang_draft_ext.backend import STOCK, DraftBackend, load_reference
from sglang_draft_ext.errors import BackendError, DraftExtError, LateRegistrationError, RegistrationError

ENTRY_POINTS = "sglang_draft_ext.backends"


@dataclass(frozen=True, kw_only=True)
class StockNames:
    """The attention backend names that the SGLang release brings.

    Args:
        general: What its general registry builds.
        draft: What it drafts with itself.
        refused: What no draft can use, and why.
    """

    general: tuple[str, ...]
    draft: tuple[str, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A draft backend, where it was asked for, and whether this process only repeats what its parent registered."""

    backend: DraftBackend
    where: str
    inherited: bool = False


class Registry:
    """Backends by name, of one process.

    ``register`` adds a declared backend; ``ask`` notes a name of the environment, which ``resolve`` turns into a backend
    once SGLang is there. ``close`` ends the window.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._requests: dict[str, settings.BackendRequest] = {}
        self.closed_at: str | None = None
        self.on_register: Callable[[], None] = lambda: None

    @property
    def names(self) -> tuple[str, ...]:
        """Every extra name, in the order asked for."""
        return tuple(dict.fromkeys((*self._requests, *self._entries)))

    def __contains__(self, name: object) -> bool:
        return name in self._requests or name in self._entries

    def where(self, name: str) -> str:
        """Where *name* was asked for."""
        return self._requests[name].where if name in self._requests else self._entries[name].where

    def register(self, backend: DraftBackend, *, where: str) -> None:
        """Add *backend*.

        Raises:
            BackendError: it is not a DraftBackend.
            LateRegistrationError: server arguments were already parsed or built in this process.
            RegistrationError: its name is taken.
        """
        if not isinstance(backend, DraftBackend):
            raise BackendError(
                f"{backend!r} is not a DraftBackend",
                where=where,
                found=f"an object of type {type(backend).__qualname__}",
                remedy="register a sglang_draft_ext.DraftBackend",
            )
        with self._lock:
            known = self._entries.get(backend.name)
            if known and known.inherited and known.backend == backend.portable:
                return  # the program of a child says what its parent said
            self.check_open(f"Draft backend {backend.name!r} is registered", where=where)
            if backend.name in self:
                raise RegistrationError(
                    f"Draft backend {backend.name!r} is registered twice",
                    where=where,
                    found=f"it is already asked for in {self.where(backend.name)}",
                    remedy="register it once, or give one of them another name",
                )
            self._entries[backend.name] = Entry(backend=backend, where=where)
        # Not under the lock: patching imports, and another thread may register while it is imported.
        try:
            self.on_register()
        except DraftExtError:
            with self._lock:
                del self._entries[backend.name]
            raise

    def check_open(self, what: str, *, where: str) -> None:
        """Refuse *what*, asked in *where*, once the window is closed.

        Raises:
            LateRegistrationError: server arguments were already parsed or built in this process.
        """
        if self.closed_at:
            raise LateRegistrationError(
                f"{what} too late to have an effect",
                where=where,
                found=f"server arguments were already parsed or built at {self.closed_at}",
                remedy=f"do it before, or name the backend in {settings.BACKENDS}",
            )

    def ask(self, request: settings.BackendRequest) -> None:
        """Note a name that the environment asks for."""
        with self._lock:
            self._requests[request.name] = request

    def close(self, where: str) -> None:
        """End the window, remembering where it was ended first."""
        with self._lock:
            self.closed_at = self.closed_at or where

    def check_names(self, stock: StockNames) -> None:
        """Refuse names that stock drafts with already, that cannot draft, or that nobody provides; imports only metadata.

        Raises:
            RegistrationError: with the nearest name and the full list.
        """
        for name in self.names:
            if name in stock.draft:
                raise RegistrationError(
                    f"{name!r} is a draft backend of this SGLang release itself and is never replaced",
                    where=self.where(name),
                    remedy="leave it out, or give your backend another name",
                )
            if name in stock.refused:
                raise RegistrationError(
                    f"{name!r} cannot draft: {stock.refused[name]}",
                    where=self.where(name),
                    remedy="leave it out",
                )
        for request in self._requests.values():
            if request.reference is None:
                self._reference(request, stock)

    def resolve(self, name: str, stock: StockNames) -> DraftBackend:
        """The draft backend called *name*, importing its provider when first asked.

        Raises:
            RegistrationError: nobody provides the name.
            BackendError: its reference does not import, or leads to something else than a backend.
        """
        if name not in self._entries:
            request = self._requests[name]
            reference = request.reference or self._reference(request, stock)
            # Not under the lock: this imports a provider, and another thread may import it and register from it.
            declared = _declared(request, reference)
            with self._lock:
                self._entries.setdefault(name, Entry(backend=declared, where=request.where))
        backend = self._entries[name].backend
        if name in stock.general and backend.attention != STOCK + name:
            raise RegistrationError(
                f"{name!r} is a general backend of this SGLang release itself and is never replaced",
                where=self.where(name),
                found=f"a draft backend whose attention is {backend.references['attention']!r}",
                remedy=f"build on it with attention={STOCK + name!r}, or give your backend another name",
            )
        return backend

    def inherit(self, entry: Entry) -> None:
        """Repeat a registration of the parent process, unless this process has one of that name."""
        with self._lock:
            if entry.backend.name in self:
                return
            self._entries[entry.backend.name] = replace(entry, inherited=True)
        self.on_register()

    @property
    def registered(self) -> tuple[Entry, ...]:
        """What was registered by a program: another process has to be told, while it reads the environment itself."""
        with self._lock:
            return tuple(entry for name, entry in self._entries.items() if name not in self._requests)

    def _reference(self, request: settings.BackendRequest, stock: StockNames) -> str:
        """Who provides a bare name: one installed entry point, else stock's general registry."""
        from importlib.metadata import entry_points

        group = entry_points(group=ENTRY_POINTS)
        points = sorted({point.value: point for point in group if point.name == request.name}.items())
        if len(points) > 1:
            raise RegistrationError(
                f"Draft backend {request.name!r} is provided more than once",
                where=request.where,
                found=", ".join(f"{value} of {_distribution(point)}" for value, point in points),
                remedy=f"choose one: {request.name}=module:attr",
            )
        if points:
            return points[0][0]
        if request.name in stock.general:
            return STOCK + request.name
        available = sorted(
            {*(point.name for point in group), *stock.general} - {*stock.draft, *stock.refused}
        )
        nearest = get_close_matches(request.name, available, n=1)
        raise RegistrationError(
            f"Nobody provides a draft backend {request.name!r}"
            + (f" (did you mean {nearest[0]!r}?)" if nearest else ""),
            where=request.where,
            found=f"the entry points of group {ENTRY_POINTS} and stock's general backends give: {', '.join(available)}",
            remedy=f"install its provider, or write {request.name}=module:attr",
        )


def _distribution(point: Any) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


def _declared(request: settings.BackendRequest, reference: str) -> DraftBackend:
    """The backend behind *reference*: a DraftBackend, or the callable that builds the AttentionBackend."""
    if reference.startswith(STOCK):
        return DraftBackend(name=request.name, attention=reference)
    found = load_reference(reference, where=request.where)
    if isinstance(found, DraftBackend):
        if found.name != request.name:
            raise BackendError(
                f"{reference!r} declares a draft backend of another name",
                where=request.where,
                found=f"its name is {found.name!r}",
                remedy=f"ask for {found.name}={reference}",
            )
        return found
    if not callable(found):
        raise BackendError(
            f"{reference!r} is not a draft backend",
            where=request.where,
            found=f"an object of type {type(found).__qualname__}",
            remedy="refer to a sglang_draft_ext.DraftBackend, or to a callable that builds an AttentionBackend",
        )
    return DraftBackend(name=request.name, attention=reference)


_INSIDE = ("sglang_draft_ext", "wrapt", "sglang", "importlib", "runpy", "contextlib")


def call_site() -> str:
    """``file:line`` of the nearest caller that is neither this package nor SGLang, else of the outermost one."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


registry = Registry()


def register(backend: DraftBackend) -> None:
    """Make *backend* available to the draft worker of every server started from this process.

    Call it before server arguments are parsed or built (``ServerArgs``, ``Engine``). Does nothing where this package is
    switched off.

    Raises:
        BackendError: *backend* is not a DraftBackend.
        HookError: the SGLang release in this process does not look as a hook expects.
        LateRegistrationError: server arguments were already parsed or built in this process.
        RegistrationError: the name is taken, or is a stock draft backend.
    """
    if _startup.disabled():
        return
    where = f"register() at {call_site()}"
    with _finder.not_swallowed():
        _startup.run()
        if "sglang" in sys.modules:  # imported before this package could wait for it
            _startup.find_spec("sglang")
        registry.register(backend, where=where)
