"""The SGLang of this interpreter: which, and how it matches the hooks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sglang_draft_ext import points
from sglang_draft_ext.doctor.finding import Finding
from sglang_draft_ext.hook import Point, Purpose, mismatches
from sglang_draft_ext.releases import TESTED
from sglang_draft_ext.surface import Surface

HookState = Literal["matches", "mismatch", "switched off"]


@dataclass(frozen=True, kw_only=True)
class Release:
    """The release that `import sglang` would find."""

    version: str
    path: str
    tested: bool


@dataclass(frozen=True, kw_only=True)
class PointState:
    """A point of the hook table on it.

    Args:
        point: Its name, as ``SGLANG_DRAFT_EXT_DISABLE`` writes it.
        era: The shape that the release has; None where it is none of the known ones.
        state: Whether every hook matches.
        needed: Whether something that the environment asks for needs it.
        mismatches: What does not match.
    """

    point: str
    era: str | None
    state: HookState
    needed: bool
    mismatches: tuple[str, ...]


def examine(
    surface: Surface | None, purposes: Collection[Purpose], disabled: frozenset[Point]
) -> tuple[Release | None, tuple[PointState, ...], list[Finding]]:
    """Look at *surface*, for what the environment asks and without the points that it has switched off."""
    if surface is None:
        text = "`import sglang` finds nothing in this environment"
        return None, (), [_problem("no-sglang", text, "install SGLang, or use its environment")]
    release = Release(version=surface.version, path=surface.path[0], tested=surface.version in TESTED)
    try:
        if surface.source(points.SERVER_ARGS) is None:
            text = f"{surface.path[0]} is no complete SGLang: it has no {points.SERVER_ARGS}"
            remedy = "look for a folder named sglang in the working directory or on PYTHONPATH"
            return release, (), [_problem("sglang-incomplete", text, remedy)]
        needed = points.needed(purposes)
        states = tuple(_state(point, surface, point in needed, disabled) for point in points.POINTS)
    except (SyntaxError, UnicodeDecodeError) as error:
        text = f"the source of {surface.path[0]} cannot be read: {error}"
        return release, (), [_problem("sglang-unreadable", text, "install SGLang again")]
    findings = [
        _finding(state)
        for state in states
        if state.state == "mismatch" or (state.needed and state.state != "matches")
    ]
    if not release.tested:
        findings.append(
            Finding(
                name="untested-release",
                level="note",
                text=f"SGLang {release.version} is not one of the releases that this version was tested on "
                f"({TESTED[0]} to {TESTED[-1]})",
            )
        )
    return release, states, findings


def _problem(name: str, text: str, remedy: str) -> Finding:
    return Finding(name=name, level="problem", text=text, remedy=remedy)


def _state(point: Point, surface: Surface, needed: bool, disabled: frozenset[Point]) -> PointState:
    era = point.era(surface)
    wrong = tuple(map(str, mismatches(point, surface)))
    state: HookState = "switched off" if point in disabled else "mismatch" if wrong else "matches"
    return PointState(
        point=point.slug, era=era.name if era else None, state=state, needed=needed, mismatches=wrong
    )


def _finding(state: PointState) -> Finding:
    if state.state == "switched off":
        text = f"the hook {state.point} is switched off, and what is asked for needs it"
        return _problem("hook-switched-off", text, f"take {state.point} out of SGLANG_DRAFT_EXT_DISABLE")
    return Finding(
        name="hook-mismatch",
        level="problem" if state.needed else "note",
        text="; ".join(state.mismatches),
        remedy="use a release that this version of sglang-draft-ext supports",
    )
