"""What is installed and what a launch would do with it, found without importing SGLang."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sglang_draft_ext import __version__, _startup, hooks
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.hook import Point, mismatches
from sglang_draft_ext.registry import Registry
from sglang_draft_ext.settings import Settings
from sglang_draft_ext.surface import Surface


@dataclass(frozen=True, kw_only=True)
class PointState:
    """A point of the hook table on the installed release."""

    point: str
    era: str | None
    mismatches: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BackendState:
    """A name that the environment asks for."""

    name: str
    where: str
    attention: str | None
    decode: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the doctor found; ``ok`` is whether a launch would get past this package."""

    version: str
    disabled: bool
    sglang: str | None
    path: str | None
    unknown_variables: tuple[str, ...]
    points: tuple[PointState, ...]
    backends: tuple[BackendState, ...]
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing that is asked for would be refused."""
        needed = {point.name for point in hooks.POINTS if point.algorithms is None}
        broken = any(state.mismatches for state in self.points if state.point in needed)
        wanted = bool(self.backends)
        return not (self.error or (wanted and broken) or any(backend.error for backend in self.backends))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ok": self.ok}


def examine() -> Report:
    """Look at this interpreter's SGLang and at this environment."""
    spec = find_spec("sglang")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    surface = Surface(folders, _version()) if folders else None
    error = None
    settings = Settings()
    try:
        settings = Settings.from_environment()
    except DraftExtError as problem:
        error = str(problem)
    if surface is None:
        error = error or "SGLang is not installed in this environment"
    return Report(
        version=__version__,
        disabled=_startup.disabled(),
        sglang=surface.version if surface else None,
        path=os.fspath(folders[0]) if folders else None,
        unknown_variables=settings.unknown,
        points=tuple(_point(point, surface) for point in hooks.POINTS) if surface else (),
        backends=_backends(settings, surface) if surface else (),
        error=error,
    )


def _point(point: Point, surface: Surface) -> PointState:
    era = point.era(surface)
    return PointState(
        point=point.name,
        era=era.name if era else None,
        mismatches=tuple(map(str, mismatches(point, surface))),
    )


def _backends(settings: Settings, surface: Surface) -> tuple[BackendState, ...]:
    stock = hooks.stock_names(surface)
    states = []
    for request in settings.backends:
        # A registry each: one bad name must not hide what is wrong with the next.
        registry = Registry()
        registry.ask(request)
        references: dict[str, str] = {}
        error = None
        try:
            registry.check_names(stock)
            references = registry.resolve(request.name, stock).references
        except DraftExtError as problem:
            error = str(problem)
        states.append(
            BackendState(
                name=request.name,
                where=request.where,
                attention=references.get("attention"),
                decode=references.get("decode")
                if "decode" in references or error
                else "made out of attention",
                error=error,
            )
        )
    return tuple(states)


def _version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"
