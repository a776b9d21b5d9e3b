"""What is installed, what is wrong with it, and what a launch would do with it, found without importing SGLang or torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches

from sglang_draft_ext import __version__, _startup, launch, settings
from sglang_draft_ext.doctor import child, installation, neighbours, release
from sglang_draft_ext.doctor.child import BackendState, Process
from sglang_draft_ext.doctor.finding import Finding
from sglang_draft_ext.doctor.installation import Installation
from sglang_draft_ext.doctor.neighbours import Neighbour
from sglang_draft_ext.doctor.release import PointState, Release
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.hooks import activation
from sglang_draft_ext.installed import installed
from sglang_draft_ext.selection import ROLES
from sglang_draft_ext.surface import Surface

__all__ = ["Diagnosis", "Finding", "examine"]


@dataclass(frozen=True, kw_only=True)
class RoleState:
    """A role of the draft as the environment selects it; a flag of the launch goes before."""

    role: str
    backend: str | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that was looked at, and every finding."""

    version: str
    disabled: bool
    installation: Installation
    variables: dict[str, str]
    sglang: Release | None
    points: tuple[PointState, ...]
    backends: tuple[BackendState, ...]
    selection: tuple[RoleState, ...]
    child: Process | None
    neighbours: tuple[Neighbour, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found that would stop a launch, or make it run without what was asked for."""
        return not any(finding.level == "problem" for finding in self.findings)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ok": self.ok}


def examine() -> Diagnosis:
    """Look at this interpreter and this environment."""
    package, findings = installation.examine()
    surface = installed()
    of_variables = [*_of_variables(surface)]
    found, states, of_release = release.examine(surface, activation.purposes, activation.disabled)
    readable = states and not any(finding.level == "problem" for finding in of_variables)
    selection, of_selection = _selection() if readable else ((), [])
    process, backends, of_child = child.examine()
    beside, of_neighbours = neighbours.examine()
    findings += [*of_variables, *of_release, *of_selection, *of_child, *of_neighbours]
    if _startup.disabled():  # nothing of this package would run
        findings = [replace(f, level=f.level if f.name in _SGLANG_ITSELF else "note") for f in findings]
    return Diagnosis(
        version=__version__,
        disabled=_startup.disabled(),
        installation=package,
        variables=settings.variables(),
        sglang=found,
        points=states,
        backends=backends,
        selection=selection,
        child=process,
        neighbours=beside,
        findings=tuple(findings),
    )


_SGLANG_ITSELF = ("no-sglang", "sglang-incomplete", "sglang-unreadable")


def _of_variables(surface: Surface | None) -> Iterator[Finding]:
    """What is wrong with the variables; afterwards `activation` has read them."""
    given = settings.variables()
    for name in sorted({*given} - {*settings.KNOWN}):
        nearest = get_close_matches(name, settings.KNOWN, n=1)
        yield Finding(
            name="unknown-variable",
            level="note",
            text=f"{name} is not a variable of this package"
            + (f" (did you mean {nearest[0]}?)" if nearest else ""),
            remedy=f"the variables are {', '.join(settings.KNOWN)}",
        )
    if _startup.disabled():
        asked = [name for name in (settings.BACKENDS, settings.SELECT) if given.get(name)]
        text = f"{settings.DISABLE} switches this package off"
        if asked:
            text += f", although {' and '.join(asked)} ask{'s' * (len(asked) == 1)} something of it"
        yield Finding(name="switched-off", level="note", text=text, remedy=f"unset {settings.DISABLE}")
    try:
        if surface is not None:
            activation.consult(surface)
        else:
            settings.Settings.from_environment()
    except DraftExtError as error:
        yield Finding(name="malformed-variable", level="problem", text=str(error))


def _selection() -> tuple[tuple[RoleState, ...], list[Finding]]:
    """What the environment selects, and whether this release can do it."""
    names, sources = launch.asked(None)
    rows = tuple(
        RoleState(role=role, backend=names.get(role), why=sources.get(role, "a flag, else the target"))
        for role in ROLES
    )
    try:
        launch.check_names(names, sources, launch.MULTI_STEP[0])
    except DraftExtError as error:
        return rows, [Finding(name="selection-refused", level="problem", text=str(error))]
    return rows, []
