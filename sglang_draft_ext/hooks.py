"""Applies the declared hook table to this process: what waits for its module, what is applied, what was refused."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import sys
import threading
from importlib import import_module
from types import ModuleType

import wrapt

from sglang_draft_ext import _finder, catalogue
from sglang_draft_ext.errors import DraftExtError, HookError, SettingsError
from sglang_draft_ext.hook import Hook, Point, Purpose, mismatches
from sglang_draft_ext.points import POINTS, SERVER_ARGS, named, needed, verify
from sglang_draft_ext.registry import call_site, registry
from sglang_draft_ext.releases import TESTED
from sglang_draft_ext.selection import parse
from sglang_draft_ext.settings import BACKENDS, DISABLE, SELECT, Settings, variables
from sglang_draft_ext.surface import Surface, installed_version

logger = logging.getLogger("sglang_draft_ext")
#: One line a hook, with SGLANG_DRAFT_EXT_DEBUG; apart from SGLang's log, which is configured later and again.
debug = logging.getLogger("sglang_draft_ext.debug")
debug.propagate = False


class Activation:
    """This process's patches: what is waiting for its module, what is applied, what was refused."""

    def __init__(self) -> None:
        # Never held while a module of SGLang or of a provider is imported: another thread may wait for it in there.
        self._lock = threading.RLock()
        self._active = False
        self._selecting: str | None = None
        self._surface: Surface | None = None
        self._loaded: dict[str, ModuleType] = {}
        self._wrapped: set[Hook] = set()
        self._told: set[tuple[Point, str]] = set()
        self._required = False
        self._warned = False
        self.environment: dict[str, str] = {}
        self.activated_at = ""
        #: The points that SGLANG_DRAFT_EXT_DISABLE names.
        self.disabled: frozenset[Point] = frozenset()
        #: What the process that started this one has registered, see `guard.registered`.
        self.parent: dict[str, str] | None = None
        #: What `guard.checkpoint` has to raise.
        self.deferred: DraftExtError | None = None

    @property
    def surface(self) -> Surface:
        """The release that this process has imported."""
        if self._surface is None:
            # Not by an import where it can be avoided: that would wait for a thread that is still importing it.
            sglang = sys.modules.get("sglang") or import_module("sglang")
            self._surface = Surface(
                list(sglang.__path__), getattr(sglang, "__version__", "") or installed_version()
            )
        return self._surface

    @property
    def applied(self) -> frozenset[Hook]:
        return frozenset(self._wrapped)

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        """What this process asks for; one that was started by a process that asks for something has to agree with it."""
        selection: tuple[Purpose, ...] = ("selection",) if self._selecting else ()
        return ("backends", *selection) if registry.names or (self.parent and not selection) else selection

    def activate(self, *, parent: dict[str, str] | None = None) -> None:
        """Read the environment and wait for the modules of the hook table; the second call does nothing.

        Args:
            parent: What the process that started this one registered, if it told.

        Raises:
            LateRegistrationError: something is asked for, and server arguments are there already.
            SelectionError, SettingsError: a variable is malformed.
        """
        with self._lock:
            if parent is not None:
                self.parent = parent
            if self._active:
                return
            self._active = True
            self.environment, self.activated_at = variables(), call_site()
            registry.on_register = self.refresh
            if parent is None and _already_built():
                registry.close(f"an unknown place, before this package was started at {self.activated_at}")
            try:
                self._read_environment()
            except SettingsError as error:
                _finder.refuse(error)  # even where the only malformed variable is one that asks for nothing
                raise
            finally:
                # Whatever went wrong: the hooks that are always set raise it again.
                for module in _hooked_modules():
                    wrapt.register_post_import_hook(self._imported, module)

    def consult(self, surface: Surface) -> None:
        """Read the environment as if this process had imported the release *surface*; nothing is patched.

        Raises:
            SelectionError, SettingsError: a variable is malformed.
        """
        self._surface = surface
        self.environment = variables()
        self._read_environment()

    def _read_environment(self) -> None:
        settings = Settings.from_environment(self.environment)
        if settings.debug:
            _log_to_stderr()
        if settings.unknown:
            logger.warning(
                "unknown variables: %s; sglang-draft-ext doctor lists those that there are",
                ", ".join(settings.unknown),
            )
        self.disabled = named(settings.disabled)
        if settings.select:
            parse(settings.select, where=SELECT)
        if settings.backends or settings.select:
            registry.check_open(
                "The environment is read",
                where=", ".join(name for name in (BACKENDS, SELECT) if self.environment.get(name)),
            )
        for request in settings.backends:
            registry.ask(request)
        self._selecting = SELECT if settings.select else None
        if self.purposes and SERVER_ARGS in sys.modules:  # before anything is patched
            self.require()

    def select(self, where: str) -> None:
        """A selection is asked for in *where*: patch what it needs, in the modules that are imported already, too.

        Raises:
            HookError: a needed hook does not match.
        """
        with self._lock:
            if self._selecting:
                return
            self._selecting = where
            try:
                self.refresh()
            except DraftExtError:
                self._selecting = None
                raise

    def refresh(self) -> None:
        """More is asked of this process than before: patch what is imported already."""
        with self._lock:
            if self._loaded:
                self._require_in_time()
            for module in [*self._loaded.values()]:
                self._apply(module)

    def _imported(self, module: ModuleType) -> None:
        try:
            with self._lock:
                self._loaded[module.__name__] = module
                if self.purposes and not self._required:
                    self._require_in_time()
                self._apply(module)
        except DraftExtError as error:
            # wrapt forgets a hook that raised, so that the next try would import an unpatched module.
            _finder.refuse(error)
            raise

    def _require_in_time(self) -> None:
        """Refuse at once, except in a child: its parent hears only of what is raised once the child's work begins."""
        if self.deferred:
            return
        try:
            self.require()
        except DraftExtError as error:
            # While it is unpickling what to run, a child does not have its parent yet.
            inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
            if not inheriting and multiprocessing.parent_process() is None:
                raise
            self.deferred = error

    def require(self, *, algorithm: str | None = None) -> None:
        """Refuse a release that cannot honour what was asked for, and names that nobody can honour.

        Raises:
            HookError: a needed hook does not match, with all mismatches.
            RegistrationError: a name is unknown or stock's own.
        """
        wanted = [*(f"draft backend {name}" for name in registry.names)]
        asked = [*(registry.where(name) for name in registry.names)]
        if self._selecting:
            wanted.append("a selection for the draft")
            asked.append(self._selecting)
        off = [p.slug for p in needed(self.purposes, algorithm=algorithm) if p in self.disabled]
        if off:
            raise HookError(
                f"SGLang cannot be given {', '.join(wanted)} with the hooks {', '.join(off)} switched off",
                where="; ".join(asked),
                found=f"{DISABLE}={self.environment[DISABLE]}",
                remedy=f"take them out of {DISABLE}",
            )
        found = verify(self.surface, self.purposes, algorithm=algorithm)
        if found:
            raise HookError(
                f"SGLang {self.surface.version} does not look as expected, so it cannot be given {', '.join(wanted)}",
                where="; ".join(asked),
                found=" | ".join(map(str, found)),
                remedy="use a release that this version of sglang-draft-ext supports",
            )
        registry.check_names(catalogue.stock_names(self.surface))
        self._required = True
        if self.surface.version not in TESTED and not self._warned:
            self._warned = True
            logger.warning(
                "SGLang %s is not one of the releases that this version of sglang-draft-ext was tested on (%s to %s); "
                "every hook needed so far matches it",
                self.surface.version,
                TESTED[0],
                TESTED[-1],
            )

    def _apply(self, module: ModuleType) -> None:
        """Apply the hooks of *module*; points that do not match are left alone, `require` speaks of them."""
        concerned = (point for point in POINTS if module.__name__ in point.modules)
        for point in concerned:
            for hook in self._hooks(point, module):
                if hook.module == module.__name__ and (hook.edit or hook not in self._wrapped):
                    self._apply_hook(point, hook, module)

    def _hooks(self, point: Point, module: ModuleType) -> tuple[Hook, ...]:
        if point in self.disabled:
            return self._skip(point, module, f"switched off by {DISABLE}")
        if self.purposes:
            era = point.era(self.surface)
            if era is None or any(mismatches(point, self.surface)):
                return self._skip(point, module, "this release has another shape")
            return era.hooks
        if not point.always:
            return self._skip(point, module, "nothing asks for it")
        # A process that asks for nothing reads no source: the first era that fits the module itself will do.
        eras = (era.hooks for era in point.eras if all(hook.module == module.__name__ for hook in era.hooks))
        fitting = next(
            (hooks for hooks in eras if not any(hook.live_mismatch(module) for hook in hooks)), None
        )
        return fitting if fitting is not None else self._skip(point, module, "this release has another shape")

    def _skip(self, point: Point, module: ModuleType, why: str) -> tuple[Hook, ...]:
        if (point, why) not in self._told:
            self._told.add((point, why))
            debug.debug("skipped %s in %s: %s", point.slug, module.__name__, why)
        return ()

    def _apply_hook(self, point: Point, hook: Hook, module: ModuleType) -> None:
        if not (hook.wrapper or hook.edit):
            return
        wrong = hook.live_mismatch(module)
        if wrong:
            raise HookError(
                f"{hook.target} was changed before this package could patch it ({point.name})",
                found=f"{wrong}, expected {hook.expected}, on SGLang {self.surface.version}",
                remedy="remove the other package that patches it",
            )
        hook.apply(module)
        if hook not in self._wrapped:
            debug.debug("applied %s to %s", point.slug, hook.target)
        self._wrapped.add(hook)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sglang-draft-ext, process %(process)d: %(message)s"))
    debug.addHandler(handler)
    debug.setLevel(logging.DEBUG)


def _already_built() -> bool:
    """Whether there are server arguments that were built before anything of SGLang was patched."""
    kind = getattr(sys.modules.get(SERVER_ARGS), "ServerArgs", None)
    return kind is not None and any(
        issubclass(type(thing), kind) and not is_placeholder(thing) for thing in gc.get_objects()
    )


def is_placeholder(server_args: object) -> bool:
    """Whether these are the arguments of no launch: SGLang builds such to read defaults, and resolves nothing in them."""
    return str(getattr(server_args, "model_path", "")).lower() in ("none", "dummy")


def _hooked_modules() -> list[str]:
    return sorted({module for point in POINTS for module in point.modules})


activation = Activation()
activate = activation.activate
