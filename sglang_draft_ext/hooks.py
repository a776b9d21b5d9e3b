"""The declared hook table: every place in SGLang that this package relies on or changes.

A *point* is one thing to be patched. Its shape changed over the releases, so it lists *eras*, newest first, each told by a
feature test; the first era whose test holds is the release's. An era's *hooks* are then verified against the release's
source before anything is changed, all at once, so that a refusal names every mismatch and comes before a model is loaded.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import wrapt

from sglang_draft_ext import _finder
from sglang_draft_ext.errors import DraftExtError, HookError
from sglang_draft_ext.registry import StockNames, registry
from sglang_draft_ext.settings import Settings
from sglang_draft_ext.surface import Definition, Kind, Surface

SERVER_ARGS = "sglang.srt.server_args"
CHOICES = "sglang.srt.arg_groups.choices"
SPECULATIVE_HOOK = "sglang.srt.arg_groups.speculative_hook"
ATTENTION_REGISTRY = "sglang.srt.layers.attention.attention_registry"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
DRAFT_UTILS = "sglang.srt.speculative.draft_utils"
DRAFT_WORKER_COMMON = "sglang.srt.speculative.draft_worker_common"
EAGLE_WORKER = "sglang.srt.speculative.eagle_worker"
DFLASH_WORKER = "sglang.srt.speculative.dflash_worker"
DFLASH_WORKER_V2 = "sglang.srt.speculative.dflash_worker_v2"

_ALLOWED = ("flashinfer", "triton")
RESOLVE_DFLASH = "_resolve_dflash_draft_attention_backend"


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One attribute of one module, how it must look, and what is done to it.

    Args:
        module, attribute: Where, as ``Class.name`` inside a class.
        kind: What the attribute must be.
        parameters: Parameters that a function must have, in this order; further ones are welcome.
        returns: What each ``return`` of a function must give: a ``(stamp, backend)`` pair, or one object.
        tuple_of: Names that one tuple of strings in the function must hold.
        wrapper: ``module:attr`` of a wrapt wrapper for a function.
        edit: ``module:attr`` of a function called with the module and the attribute's name, idempotent.
    """

    module: str
    attribute: str
    kind: Kind = "function"
    parameters: tuple[str, ...] = ()
    returns: Literal["pair", "object"] | None = None
    tuple_of: tuple[str, ...] = ()
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
            wrapt.wrap_function_wrapper(module, self.attribute, _load(self.wrapper))
        if self.edit:
            _load(self.edit)(module, self.attribute)


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
    """One thing to be patched, and for which speculative algorithms it is needed (None: always)."""

    name: str
    eras: tuple[Era, ...]
    algorithms: tuple[str, ...] | None = None

    def era(self, surface: Surface) -> Era | None:
        """The era that *surface* belongs to."""
        return next((era for era in self.eras if era.test(surface)), None)


def _has(module: str, attribute: str) -> Callable[[Surface], bool]:
    return lambda surface: surface.get(module, attribute) is not None


def _create_backend_takes(parameter: str, present: bool) -> Callable[[Surface], bool]:
    def test(surface: Surface) -> bool:
        found = surface.get(DRAFT_UTILS, "DraftBackendFactory._create_backend")
        return found is not None and (parameter in found.parameters) == present

    return test


def _no_dflash(surface: Surface) -> bool:
    return surface.source(DFLASH_WORKER) is None and surface.source(DFLASH_WORKER_V2) is None


def _no_hook_resolver(surface: Surface) -> bool:
    return surface.get(SPECULATIVE_HOOK, RESOLVE_DFLASH) is None


def _inline_in(module: str, constructor: str) -> Callable[[Surface], bool]:
    """DFLASH's allow-list is a tuple inside the worker's constructor, and nothing else resolves the name."""

    def test(surface: Surface) -> bool:
        found = surface.get(module, constructor)
        tuples = found.constants if found else ()
        return any({*_ALLOWED} <= {*names} for names in tuples) and _no_hook_resolver(surface)

    return test


def _constructor_era(module: str, constructor: str) -> Era:
    hook = Hook(module=module, attribute=constructor, tuple_of=_ALLOWED, edit="dflash_worker:extend")
    return Era(name=f"a tuple in {constructor}", test=_inline_in(module, constructor), hooks=(hook,))


def _map_hooks(
    module: str, owner: str, *, decode: str, extend: str, returns: Literal["pair", "object"]
) -> tuple[Hook, ...]:
    return (
        Hook(
            module=module,
            attribute=f"{owner}._create_backend",
            parameters=("self", "backend_name", "backend_map", "error_template"),
            wrapper="draft_utils:create_backend",
        ),
        Hook(
            module=module,
            attribute=f"{owner}.{decode}",
            parameters=("self",),
            wrapper="draft_utils:for_decode",
        ),
        Hook(
            module=module,
            attribute=f"{owner}.{extend}",
            parameters=("self",),
            wrapper="draft_utils:for_extend",
        ),
        # One creator of each map stands for the shape of all its values.
        Hook(module=module, attribute=f"{owner}._create_triton_decode_backend", returns=returns),
        Hook(module=module, attribute=f"{owner}._create_triton_prefill_backend", returns=returns),
    )


def _factory_hooks(returns: Literal["pair", "object"]) -> tuple[Hook, ...]:
    return _map_hooks(
        DRAFT_UTILS,
        "DraftBackendFactory",
        decode="create_decode_backend",
        extend="create_draft_extend_backend",
        returns=returns,
    )


def _list_hook(module: str, attribute: str) -> tuple[Hook, ...]:
    return (Hook(module=module, attribute=attribute, kind="list", edit="choices:extend"),)


def _server_args_hooks(resolution: str) -> tuple[Hook, ...]:
    return (
        Hook(
            module=SERVER_ARGS,
            attribute="ServerArgs.from_cli_args",
            parameters=("args",),
            wrapper="server_args:from_cli_args",
        ),
        Hook(
            module=SERVER_ARGS,
            attribute=f"ServerArgs.{resolution}",
            parameters=("self",),
            wrapper="server_args:resolution",
        ),
    )


_DFLASH = ("DFLASH", "DSPARK")

POINTS = (
    Point(
        name="server arguments",
        eras=(
            Era(
                name="resolve_once",
                test=_has(SERVER_ARGS, "ServerArgs.resolve_once"),
                hooks=_server_args_hooks("resolve_once"),
            ),
            Era(
                name="__post_init__",
                test=_has(SERVER_ARGS, "ServerArgs.__post_init__"),
                hooks=_server_args_hooks("__post_init__"),
            ),
        ),
    ),
    Point(
        name="choices",
        eras=(
            Era(
                name="a module of choices",
                test=_has(CHOICES, "ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(CHOICES, "ATTENTION_BACKEND_CHOICES"),
            ),
            Era(
                name="in server_args",
                test=lambda surface: surface.source(CHOICES) is None,
                hooks=_list_hook(SERVER_ARGS, "ATTENTION_BACKEND_CHOICES"),
            ),
        ),
    ),
    Point(
        name="general registry",
        eras=(
            Era(
                name="a registry",
                test=_has(ATTENTION_REGISTRY, "ATTENTION_BACKENDS"),
                hooks=(
                    Hook(
                        module=ATTENTION_REGISTRY,
                        attribute="ATTENTION_BACKENDS",
                        kind="dict",
                        edit="attention_registry:add",
                    ),
                ),
            ),
            Era(
                name="if/elif",
                test=lambda surface: surface.source(ATTENTION_REGISTRY) is None,
                hooks=(
                    Hook(
                        module=MODEL_RUNNER,
                        attribute="ModelRunner._get_attention_backend_from_str",
                        parameters=("self", "backend_str"),
                        wrapper="model_runner:attention_backend_from_str",
                    ),
                ),
            ),
        ),
    ),
    Point(
        name="draft maps",
        eras=(
            Era(
                name="factory of pairs",
                test=_create_backend_takes("stamps_children", True),
                hooks=_factory_hooks("pair"),
            ),
            Era(
                name="factory of backends",
                test=_create_backend_takes("stamps_children", False),
                hooks=_factory_hooks("object"),
            ),
            Era(
                name="methods of EAGLEWorker",
                test=_has(EAGLE_WORKER, "EAGLEWorker._create_backend"),
                hooks=_map_hooks(
                    EAGLE_WORKER,
                    "EAGLEWorker",
                    decode="_create_decode_backend",
                    extend="_create_draft_extend_backend",
                    returns="object",
                ),
            ),
        ),
    ),
    Point(
        name="draft choices",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="a module of choices",
                test=_has(CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES"),
            ),
            Era(
                name="in server_args",
                test=_has(SERVER_ARGS, "DRAFT_ATTENTION_BACKEND_CHOICES"),
                hooks=_list_hook(SERVER_ARGS, "DRAFT_ATTENTION_BACKEND_CHOICES"),
            ),
            Era(name="no list yet", test=lambda surface: surface.source(CHOICES) is None),
        ),
    ),
    Point(
        name="draft resolver at argument time",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="a function",
                test=_has(SPECULATIVE_HOOK, RESOLVE_DFLASH),
                hooks=(
                    Hook(
                        module=SPECULATIVE_HOOK,
                        attribute=RESOLVE_DFLASH,
                        parameters=("server_args",),
                        wrapper="speculative_hook:resolve_dflash",
                    ),
                ),
            ),
            Era(
                name="none: the worker resolves alone",
                test=_inline_in(DFLASH_WORKER, "DFlashWorker.__init__"),
            ),
            Era(
                name="none: the second worker resolves alone",
                test=_inline_in(DFLASH_WORKER_V2, "DFlashWorkerV2.__init__"),
            ),
            Era(name="no DFLASH yet", test=_no_dflash),
        ),
    ),
    Point(
        name="draft resolver at worker time",
        algorithms=_DFLASH,
        eras=(
            Era(
                name="reads the draft choices",
                test=_has(DRAFT_WORKER_COMMON, "resolve_draft_worker_attention_backend"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="resolve_draft_worker_attention_backend",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON, attribute="DRAFT_ATTENTION_BACKEND_CHOICES", kind="import"
                    ),
                ),
            ),
            Era(
                name="reads a tuple of its own",
                test=_has(DRAFT_WORKER_COMMON, "_SUPPORTED_DRAFT_BACKENDS"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_resolve_draft_attention_backend_fallback",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_SUPPORTED_DRAFT_BACKENDS",
                        kind="tuple",
                        edit="draft_worker_common:extend",
                    ),
                ),
            ),
            Era(
                name="reads the draft choices, first name",
                test=_has(DRAFT_WORKER_COMMON, "_resolve_draft_attention_backend_fallback"),
                hooks=(
                    Hook(
                        module=DRAFT_WORKER_COMMON,
                        attribute="_resolve_draft_attention_backend_fallback",
                        parameters=("algo_label",),
                    ),
                    Hook(
                        module=DRAFT_WORKER_COMMON, attribute="DRAFT_ATTENTION_BACKEND_CHOICES", kind="import"
                    ),
                ),
            ),
            _constructor_era(DFLASH_WORKER, "DFlashWorker.__init__"),
            _constructor_era(DFLASH_WORKER_V2, "DFlashWorkerV2.__init__"),
            Era(
                name="none: the argument-time resolver decides alone",
                test=lambda s: s.source(DRAFT_WORKER_COMMON) is None and not _no_hook_resolver(s),
            ),
            Era(name="no DFLASH yet", test=_no_dflash),
        ),
    ),
)


_SERVER_ARGUMENTS, _DRAFT_MAPS = POINTS[0], POINTS[3]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A hook that a release does not match."""

    point: str
    target: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.point} ({self.target}): expected {self.expected}, found {self.found}"


def verify(surface: Surface, *, algorithm: str | None = None) -> list[Mismatch]:
    """Every hook that extra draft backends need and *surface* does not match.

    Args:
        surface: The release.
        algorithm: The speculative algorithm of this launch, when it is known.
    """
    needed = [p for p in POINTS if p.algorithms is None or algorithm in p.algorithms]
    return [mismatch for point in needed for mismatch in mismatches(point, surface)]


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


def stock_names(surface: Surface) -> StockNames:
    """The attention backend names that the release brings, read from its source."""
    general = surface.get(CHOICES, "ATTENTION_BACKEND_CHOICES") or surface.get(
        SERVER_ARGS, "ATTENTION_BACKEND_CHOICES"
    )
    draft: dict[str, None] = {}
    era = _DRAFT_MAPS.era(surface)
    for hook in era.hooks if era else ():
        found = surface.get(hook.module, hook.attribute)
        draft |= dict.fromkeys(found.keys if found else ())
    names = general.constants[0] if general and general.constants else ()
    return StockNames(general=names, draft=tuple(draft))


class Activation:
    """This process's patches: what is waiting for its module, what is applied, what was refused."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._active = False
        self._surface: Surface | None = None
        self._wrapped: set[Hook] = set()

    @property
    def surface(self) -> Surface:
        """The release that this process has imported."""
        if self._surface is None:
            sglang = import_module("sglang")
            self._surface = Surface(list(sglang.__path__), getattr(sglang, "__version__", "") or _version())
        return self._surface

    @property
    def applied(self) -> frozenset[Hook]:
        return frozenset(self._wrapped)

    def activate(self) -> None:
        """Read the environment and wait for the modules of the hook table; the second call does nothing.

        Raises:
            SettingsError: a variable is malformed.
        """
        with self._lock:
            if self._active:
                return
            for request in Settings.from_environment().backends:
                registry.ask(request)
            registry.on_register = self._registered
            self._active = True
            for module in _hooked_modules():
                wrapt.register_post_import_hook(self._imported, module)

    def _imported(self, module: ModuleType) -> None:
        try:
            with self._lock:
                if module.__name__ == SERVER_ARGS and registry.names:
                    self.require()
                self._apply(module)
        except DraftExtError as error:
            # wrapt forgets a hook that raised, so that the next try would import an unpatched module.
            _finder.refuse(error)
            raise

    def _registered(self) -> None:
        with self._lock:
            loaded = [sys.modules[name] for name in _hooked_modules() if name in sys.modules]
            if SERVER_ARGS in sys.modules:
                self.require()
            for module in loaded:
                self._apply(module)

    def require(self, *, algorithm: str | None = None) -> None:
        """Refuse a release that cannot honour what was asked for, and names that nobody can honour.

        Raises:
            HookError: a needed hook does not match, with all mismatches.
            RegistrationError: a name is unknown or stock's own.
        """
        found = verify(self.surface, algorithm=algorithm)
        if found:
            raise HookError(
                f"SGLang {self.surface.version} does not look as expected, so draft backends "
                f"{', '.join(registry.names)} cannot be added",
                where="; ".join(registry.where(name) for name in registry.names),
                found=" | ".join(map(str, found)),
                remedy="use a release that this version of sglang-draft-ext supports",
            )
        registry.check_names(stock_names(self.surface))

    def _apply(self, module: ModuleType) -> None:
        """Apply the hooks of *module*; those of points that do not match are left alone, `require` speaks of them."""
        if not registry.names:
            # A process that asks for nothing only watches for the end of the window, and reads no source for that.
            if module.__name__ == SERVER_ARGS:
                live = (
                    era
                    for era in _SERVER_ARGUMENTS.eras
                    if not any(h.live_mismatch(module) for h in era.hooks)
                )
                for hook in next(live, Era(name="unknown", test=bool)).hooks:
                    self._apply_hook(hook, module)
            return
        for point in POINTS:
            era = point.era(self.surface)
            if era is None or any(mismatches(point, self.surface)):
                continue
            for hook in era.hooks:
                if hook.module == module.__name__ and (hook.wrapper or hook.edit):
                    wrong = hook.live_mismatch(module)
                    if wrong:
                        raise HookError(
                            f"{hook.target} was changed before this package could patch it ({point.name})",
                            found=f"{wrong}, expected {hook.expected}, on SGLang {self.surface.version}",
                            remedy="remove the other package that patches it",
                        )
                    self._apply_hook(hook, module)

    def _apply_hook(self, hook: Hook, module: ModuleType) -> None:
        if hook.edit or hook not in self._wrapped:
            hook.apply(module)
            self._wrapped.add(hook)


def _hooked_modules() -> list[str]:
    return sorted({hook.module for point in POINTS for era in point.eras for hook in era.hooks})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"


activation = Activation()
activate = activation.activate
