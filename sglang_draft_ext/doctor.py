"""What is installed and what a launch would do with it, found without importing SGLang."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from sglang_draft_ext import __version__, _startup, catalogue, points
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.hook import Point, Purpose, mismatches
from sglang_draft_ext.registry import Registry
from sglang_draft_ext.selection import parse
from sglang_draft_ext.settings import SELECT, Settings
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
    refused: tuple[str, ...]
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether nothing that is asked for would be refused."""
        return not (self.error or self.refused or any(backend.error for backend in self.backends))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ok": self.ok}


def examine() -> Report:
    """Look at this interpreter's SGLang and at this environment."""
    # Not by `importlib.util.find_spec`, which would ask this package's own finder, and so activate the hooks.
    others = (finder for finder in sys.meta_path if finder is not _startup)
    spec = next(filter(None, (finder.find_spec("sglang", None) for finder in others)), None)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    surface = Surface(folders, _version()) if folders else None
    error = None
    settings = Settings()
    try:
        settings = Settings.from_environment()
        if settings.select:
            parse(settings.select, where=SELECT)
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
        points=tuple(_point(point, surface) for point in points.POINTS) if surface else (),
        backends=_backends(settings, surface) if surface else (),
        refused=tuple(map(str, points.verify(surface, _purposes(settings)))) if surface else (),
        error=error,
    )


def _purposes(settings: Settings) -> tuple[Purpose, ...]:
    asked: dict[Purpose, object] = {"backends": settings.backends, "selection": settings.select}
    return tuple(purpose for purpose, what in asked.items() if what)


def _point(point: Point, surface: Surface) -> PointState:
    era = point.era(surface)
    return PointState(
        point=point.name,
        era=era.name if era else None,
        mismatches=tuple(map(str, mismatches(point, surface))),
    )


def _backends(settings: Settings, surface: Surface) -> tuple[BackendState, ...]:
    stock = catalogue.stock_names(surface)
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
