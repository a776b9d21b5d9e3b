"""What one launch asks of the draft: its selection, and where each role came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sglang_draft_ext import catalogue, hooks, selection
from sglang_draft_ext.errors import SelectionError
from sglang_draft_ext.registry import registry
from sglang_draft_ext.selection import ROLES, Role, Selection
from sglang_draft_ext.settings import AUTO, BACKENDS, SELECT

FIELD = "speculative_draft_attention_backend"
FLAG = "--speculative-draft-attention-backend"
ROLE_FIELDS: dict[Role, str] = {role: f"speculative_draft_{role}_attention_backend" for role in ROLES}
ROLE_FLAGS: dict[Role, str] = {role: "--" + field.replace("_", "-") for role, field in ROLE_FIELDS.items()}

#: With these there is no draft model to choose a backend for.
NO_DRAFT_MODEL = (None, "NGRAM")
MULTI_STEP = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")

# What arguments say before there is a ServerArgs whose field can carry it (releases without the draft flag).
pending: ContextVar[str | None] = ContextVar("pending", default=None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The draft's backends of one launch, and why."""

    selection: Selection
    sources: dict[Role, str]

    def describe(self) -> dict[str, dict[str, str]]:
        """Role -> backend and where it was asked for, as reported by ``/server_info``."""
        return {r: {"backend": getattr(self.selection, r), "from": self.sources[r]} for r in ROLES}

    def __str__(self) -> str:
        return ", ".join(f"{r}={getattr(self.selection, r)} ({self.sources[r]})" for r in ROLES)


def asked(text: str | None) -> tuple[dict[Role, str], dict[Role, str]]:
    """The roles that a launch names, and where: *text*, the draft flag's value, then ``SGLANG_DRAFT_EXT_SELECT``.

    Raises:
        SelectionError: one of them is malformed.
    """
    names: dict[Role, str] = {}
    sources: dict[Role, str] = {}
    for value, where in ((os.environ.get(SELECT, "").strip(), SELECT), (text, FLAG)):
        if value and (value, where) != (AUTO, SELECT):
            given = selection.parse(value, where=where)
            names.update(given)
            sources.update(dict.fromkeys(given, where))
    return names, sources


def flag_value(flag: str | None, roles: Mapping[Role, str | None]) -> str | None:
    """The draft flag with *roles* folded in; they win over it."""
    given = {role: name for role, name in roles.items() if name}
    if not given:
        return flag
    names = {**(selection.parse(flag, where=FLAG) if flag else {}), **given}
    return uniform(names) or ",".join(f"{role}={names[role]}" for role in ROLES if role in names)


def uniform(names: Mapping[Role, str]) -> str | None:
    """The one name that all roles have, if they have: then stock's own flag says the same."""
    return next(iter(names.values())) if len(names) == len(ROLES) and len({*names.values()}) == 1 else None


def check_names(names: Mapping[Role, str], sources: Mapping[Role, str], algorithm: str | None) -> None:
    """Refuse names that cannot do the role they are named for, before anything else of the launch is known.

    Raises:
        SelectionError: with the nearest name and the full list.
    """
    surface = hooks.activation.surface
    for role, name in names.items():
        # Only the multi-step algorithms look a name up in the maps.
        if algorithm in MULTI_STEP or role == "prefill":
            known = catalogue.current_name(surface, name)
            able = catalogue.able(surface, role, registry.names)
            selection.check(known, role, able, where=sources[role], why=_why_not(known, role))


def _why_not(name: str, role: Role) -> str:
    """What the catalogue says of a name that cannot do *role*; empty when the release does not know the name."""
    found = catalogue.row(hooks.activation.surface, name)
    if found is None:
        return ""
    if found[role].state == "multistep":
        return f"it has none in this release; {BACKENDS}={name} adds it"
    return found[role].why


def plan(config: Any, names: Mapping[Role, str], sources: Mapping[Role, str]) -> Plan:
    """Complete what the launch names: with the backend that stock has chosen for the draft, else with the target's.

    Args:
        config: A view of the launch's ``ServerArgs`` as resolved.
        names, sources: The roles that the launch names, and where.

    Raises:
        SelectionError: a role would follow the target, whose backend is not decided yet.
    """
    names = {role: catalogue.current_name(hooks.activation.surface, name) for role, name in names.items()}
    # A model's own default; what the launch names is in the same field, and stock leaves it there.
    for_model = None if names else getattr(config, FIELD, None)
    prefill = for_model or config.prefill_attention_backend or config.attention_backend
    decode = for_model or config.decode_attention_backend or config.attention_backend
    mode = config.speculative_attention_mode
    chosen = selection.complete(names, prefill=prefill, decode=decode, attention_mode=mode)
    if names and None in (chosen.prefill, chosen.extend, chosen.decode):
        raise SelectionError(
            "A role of the draft would follow the target, whose backend this release decides on later",
            where=", ".join(dict.fromkeys(sources.values())),
            found=str(chosen),
            remedy="name every role, or set --attention-backend",
        )
    default = dict.fromkeys(ROLES, "default: SGLang's for this model") if for_model else {}
    return Plan(
        selection=chosen,
        sources={role: sources.get(role) or default.get(role) or _default(role, mode) for role in ROLES},
    )


def _default(role: Role, attention_mode: str) -> str:
    if role == "extend":
        return f"default: the draft's {'decode' if attention_mode == 'decode' else 'prefill'}"
    return f"default: the target's {role}"


def asked_roles(made: Plan) -> tuple[Role, ...]:
    """The roles that were named: neither defaulted, nor fallen back to."""
    return tuple(role for role in ROLES if not made.sources[role].startswith(("default", "fallback")))


def of_server_args(server_args: Any) -> Plan | None:
    """The plan attached to a launch's arguments; None when stock's own rule decides."""
    carried = getattr(server_args, "_draft_ext", None)
    if carried is not None:
        found: Plan | None = carried.plan
        return found
    # The attachment is lost where a release copies its arguments field by field (Ray, up to 0.5.18).
    text = getattr(server_args, FIELD, None)
    if not text or "=" not in text:
        return None
    roles = selection.parse(text, where=FLAG)
    if set(roles) != set(ROLES):
        raise SelectionError("A copied selection is not complete", where=FLAG, found=text)
    return Plan(
        selection=Selection(**{str(role): name for role, name in roles.items()}),
        sources=dict.fromkeys(ROLES, FLAG),
    )


def selected(server_args: Any) -> Selection | None:
    """The selection that is for us to honour: one name for all roles is stock's own affair, where it has the flag."""
    made = of_server_args(server_args)
    if made is None or (hasattr(server_args, FIELD) and "=" not in str(made.selection)):
        return None
    return made.selection
