"""What a launch would do with the draft, without starting it.

The flags go through the same functions of `launch` as at a launch, on the same reading of the release. What only SGLang or
the model can say is not guessed: it is listed as decided at launch.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from sglang_draft_ext import _startup, build, launch, points
from sglang_draft_ext.backend import STOCK as STOCK_REFERENCE
from sglang_draft_ext.errors import DraftExtError, SelectionError
from sglang_draft_ext.foresee import foresee
from sglang_draft_ext.hooks import activation
from sglang_draft_ext.launch import FIELD, FLAG, MULTI_STEP, ROLE_FIELDS, ROLE_FLAGS
from sglang_draft_ext.registry import registry
from sglang_draft_ext.report import Report
from sglang_draft_ext.selection import ROLES, Role
from sglang_draft_ext.surface import Surface

STOCK = "SGLang's own"
BEFORE = "sglang-draft-ext, before a model is loaded"
AFTER = "SGLang, after the models are loaded"

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_TARGET = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


class LineError(ValueError):
    """The launch line cannot be read."""


@dataclass(frozen=True, kw_only=True)
class RoleRow:
    """One role of the draft.

    Args:
        role: Which.
        backend: Its backend; None where it follows the target's, which only the launch knows.
        why: Where it was asked for, or whose default it is.
        built_by: What builds it.
    """

    role: Role
    backend: str | None
    why: str
    built_by: str | None


@dataclass(kw_only=True)
class Explanation:
    """What a launch would do.

    Args:
        release: SGLang's version.
        algorithm: The speculative algorithm; None when nothing drafts.
        asks: Whether the launch asks anything of this package.
        roles: The draft's backends, where there is a draft.
        notes: What else there is to know.
        at_launch: What is decided only at launch.
        error, refused_by: Why the launch would be refused, by whom and when.
    """

    release: str
    algorithm: str | None
    asks: bool = False
    roles: tuple[RoleRow, ...] = ()
    notes: list[str]
    at_launch: list[str]
    error: str | None = None
    refused_by: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that a launch line sets in front, and its flags; what is between names the program."""
    rest = shlex.split(words[0]) if len(words) == 1 else [*words]
    variables = {}
    while rest and not rest[0].startswith("--"):
        word = rest.pop(0)
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            variables[name] = value
    return variables, rest


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LineError(message)


def read(flags: Sequence[str]) -> argparse.Namespace:
    """The flags of a launch that concern the draft.

    Raises:
        LineError: one of them has no value, or is written in short.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for field in (*_TARGET, FIELD, *ROLE_FIELDS.values(), "speculative_algorithm", "config"):
        parser.add_argument(_flag(field))
    parser.add_argument("--speculative-attention-mode", default="prefill")
    for field in (
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_draft_window_size",
        "page_size",
    ):
        parser.add_argument(_flag(field), type=int)
    for field in ("enable_multi_layer_eagle", "enable_unified_memory", "disable_overlap_schedule"):
        parser.add_argument(_flag(field), action="store_true")
    found, others = parser.parse_known_args([*flags])
    for name in (other.partition("=")[0] for other in others if other.startswith("--")):
        full = [flag for flag in parser._option_string_actions if flag.startswith(name)]
        if full:
            raise LineError(f"{name} may be short for {' or '.join(full)}: write the flag in full")
    return found


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def explain(flags: Sequence[str], surface: Surface) -> Explanation:
    """Say what a launch with *flags* would do on *surface*, in the environment of this process.

    Raises:
        LineError: the flags cannot be read.
    """
    given = read(flags)
    algorithm = given.speculative_algorithm and given.speculative_algorithm.upper()
    said = Explanation(release=surface.version, algorithm=algorithm, notes=[], at_launch=[])
    if given.config:
        said.at_launch.append(f"what {given.config} says; its flags are not read here")
    if _startup.disabled():
        _explain_off(said, given, surface)
        return said
    try:
        _explain_on(said, given, surface)
    except DraftExtError as error:
        said.error, said.refused_by = str(error), BEFORE
    said.asks = bool(activation.purposes)
    return said


def _explain_off(said: Explanation, given: argparse.Namespace, surface: Surface) -> None:
    """With this package switched off."""
    said.notes.append(f"{_startup.DISABLE} switches this package off: SGLang alone reads the line")
    unknown = [ROLE_FLAGS[role] for role in ROLES if getattr(given, ROLE_FIELDS[role])]
    text = getattr(given, FIELD)
    if text and not has_draft_flag(surface):
        unknown.append(FLAG)
    if unknown:
        said.error, said.refused_by = f"unrecognized arguments: {' '.join(unknown)}", f"{STOCK} parser"
    elif text and "=" in text:
        said.error, said.refused_by = f"{text!r} is not the name of one backend", AFTER


def _explain_on(said: Explanation, given: argparse.Namespace, surface: Surface) -> None:
    """What the launch does, in the same order: import, parse, resolve the arguments, start the workers."""
    activation.consult(surface)
    if activation.purposes:
        activation.require()
    _check_target(given, surface)
    roles = {role: getattr(given, field) for role, field in ROLE_FIELDS.items()}
    names, sources = launch.asked(launch.flag_value(getattr(given, FIELD), roles))
    for name in registry.names:
        build.declared(name)
    if names and not (has_draft_flag(surface) and launch.uniform(names) is not None):
        activation.select(", ".join(dict.fromkeys(sources.values())))
        launch.check_names(names, sources, given.speculative_algorithm)
    if activation.purposes:
        activation.require(algorithm=said.algorithm)
    if said.algorithm in launch.NO_DRAFT_MODEL:
        drafts = f"{said.algorithm} drafts without a model" if said.algorithm else "nothing drafts"
        said.notes.append(f"{drafts}, so no backend is chosen for a draft")
        return
    try:
        fields = {**vars(given), "speculative_algorithm": said.algorithm}
        plan, at_launch = foresee(fields, names, sources, surface)
    except DraftExtError as error:
        if activation.purposes:
            raise
        said.error, said.refused_by = error.problem, AFTER  # it would be the backend's own error
        return
    said.at_launch += at_launch
    for name in registry.names:
        build.load_factories(name)
    for role in ROLES:
        backend: str | None = getattr(plan.selection, role)
        row = RoleRow(role=role, backend=backend, why=plan.sources[role], built_by=_builder(role, backend))
        said.roles += (row,)
    if said.algorithm not in MULTI_STEP and any(getattr(plan.selection, r) not in registry for r in ROLES):
        said.notes.append(
            f"{STOCK} rule for {said.algorithm} has the last word, and may take another backend"
        )


def _check_target(given: argparse.Namespace, surface: Surface) -> None:
    """As SGLang's parser does: its list of choices holds the extra names, too."""
    known = (*points.choices(surface), *registry.names)
    for field in _TARGET:
        name = getattr(given, field)
        if name and name not in known:
            raise SelectionError(
                f"{name!r} is not an attention backend of this release",
                where=_flag(field),
                remedy=f"choose from {', '.join(sorted(known))}",
            )


def _builder(role: Role, name: str | None) -> str | None:
    if name is None:
        return None
    if name not in registry:
        return STOCK
    references = build.declared(name).references
    attention = references["attention"].replace(STOCK_REFERENCE, f"{STOCK} ")
    if role != "decode":
        return attention
    if build.makes_decode(name):
        return f"sglang_draft_ext.multistep, of {attention}"
    return references.get("decode", STOCK)


def text(said: Explanation, *, colour: bool | None = None) -> str:
    """The explanation as a person reads it."""
    report = Report(colour=colour)
    report.title(
        f"SGLang {said.release}: {f'a draft for {said.algorithm}' if said.algorithm else 'no draft'}"
    )
    if said.roles:
        report.line()
        head = ("role", "backend", "why", "built by")
        rows = [(row.role, row.backend or "at launch", row.why, row.built_by or "-") for row in said.roles]
        report.table(head, rows)
    report.line()
    for note in said.notes:
        report.line(f"{note[0].upper()}{note[1:]}.")
    if not said.asks:
        report.line("Nothing here asks anything of sglang-draft-ext.")
    for item in said.at_launch:
        report.line(f"Decided only at launch: {item}.")
    if said.error:
        report.line(f"Refused by {said.refused_by}:", colour="problem")
        report.line(f"  {said.error}")
    else:
        report.line("This launch is not refused.", colour="good")
    return str(report)


def has_draft_flag(surface: Surface) -> bool:
    """Whether the release has ``--speculative-draft-attention-backend`` itself."""
    return bool(
        surface.get("sglang.srt.arg_groups.fields.spec", f"Spec.{FIELD}")
        or surface.get(points.SERVER_ARGS, f"ServerArgs.{FIELD}")
    )
