"""What one launch asks of the draft: its selection, where each role came from, and whether the backends can do it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from sglang_draft_ext import build, catalogue, hooks, points, selection
from sglang_draft_ext.errors import BackendError, SelectionError
from sglang_draft_ext.registry import registry
from sglang_draft_ext.selection import ROLES, Role, Selection
from sglang_draft_ext.settings import BACKENDS, SELECT
from sglang_draft_ext.workers import multi_layer_asks

FIELD = "speculative_draft_attention_backend"
FLAG = "--speculative-draft-attention-backend"
ROLE_FIELDS: dict[Role, str] = {role: f"speculative_draft_{role}_attention_backend" for role in ROLES}
ROLE_FLAGS: dict[Role, str] = {role: "--" + field.replace("_", "-") for role, field in ROLE_FIELDS.items()}

MULTI_STEP = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
TRTLLM_MHA_PAGES = (16, 32, 64)

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
        if value:
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
    """Complete what the launch names with the target's backends.

    Args:
        config: A view of the launch's ``ServerArgs`` as resolved.
        names, sources: The roles that the launch names, and where.

    Raises:
        SelectionError: a name cannot do its role on this release, or the algorithm has no such role.
    """
    names = {role: catalogue.current_name(hooks.activation.surface, name) for role, name in names.items()}
    prefill = config.prefill_attention_backend or config.attention_backend
    decode = config.decode_attention_backend or config.attention_backend
    mode = config.speculative_attention_mode
    chosen = selection.complete(names, prefill=prefill, decode=decode, attention_mode=mode)
    made = Plan(selection=chosen, sources={role: sources.get(role, _default(role, mode)) for role in ROLES})
    _check_roles(config, made)
    return made


def _default(role: Role, attention_mode: str) -> str:
    if role == "extend":
        return f"default: the draft's {'decode' if attention_mode == 'decode' else 'prefill'}"
    return f"default: the target's {role}"


def _check_roles(config: Any, made: Plan) -> None:
    chosen, sources = made.selection, made.sources
    algorithm = config.speculative_algorithm
    if "=" in str(chosen):
        if algorithm not in MULTI_STEP:
            raise SelectionError(
                f"{algorithm} drafts on one backend and has no roles to select",
                where=_where(made),
                found=str(chosen),
                remedy=f"name one backend: {FLAG} NAME",
            )
        if (
            "trtllm_mha" in (chosen.prefill, chosen.extend, chosen.decode)
            and config.page_size not in TRTLLM_MHA_PAGES
        ):
            # Stock sets the page size when the flag is this name alone; it does not recognise it in a selection.
            raise SelectionError(
                "trtllm_mha needs KV pages of 16, 32 or 64 tokens",
                where=_where(made),
                found=f"page size {config.page_size}",
                remedy="set --page-size 64",
            )
        if getattr(config, "enable_multi_layer_eagle", False) and "decode" in asked_roles(made):
            raise SelectionError(
                "Multi-layer EAGLE has no draft decode",
                where=sources["decode"],
                found=str(chosen),
                remedy="select prefill and extend only",
            )
    built = {role: getattr(chosen, role) for role in ROLES}
    if (config.speculative_num_steps or 0) <= 1:
        del built["decode"]
    check_names(built, sources, algorithm)


def asked_roles(made: Plan) -> tuple[Role, ...]:
    """The roles that were named, not defaulted."""
    return tuple(role for role in ROLES if not made.sources[role].startswith("default"))


def _where(made: Plan) -> str:
    return ", ".join(dict.fromkeys(made.sources[role] for role in asked_roles(made)))


def check_limits(server_args: Any, config: Any, chosen: Selection) -> None:
    """Refuse a launch that asks a draft backend for something outside its declared limits.

    Raises:
        BackendError: with the limit and the flag to change.
    """
    drafts_steps = config.speculative_algorithm in MULTI_STEP
    _check_worker(config, chosen)
    for name in dict.fromkeys((chosen.prefill, chosen.extend, chosen.decode)):
        if name in registry:
            _check(name, server_args, config, drafts_steps=drafts_steps and name == chosen.decode)


def _check_worker(config: Any, chosen: Selection) -> None:
    """Refuse a worker that would not ask for the backend that was asked for."""
    names = [name for name in (chosen.prefill, chosen.extend, chosen.decode) if name in registry]
    if not names and "=" not in str(chosen):
        return
    asked_for = registry.where(names[0]) if names else FLAG
    multi_layer = getattr(config, "enable_multi_layer_eagle", False)
    if multi_layer and not config.disable_overlap_schedule and not multi_layer_asks(hooks.activation.surface):
        raise BackendError(
            "Multi-layer EAGLE with overlap schedule is hard-coded to FlashAttention in this release",
            where=asked_for,
            found=str(chosen),
            remedy="set --disable-overlap-schedule",
        )
    first_worker = hooks.activation.surface.source(points.EAGLE_WORKER) and config.disable_overlap_schedule
    extends = config.speculative_algorithm in MULTI_STEP and chosen.extend in registry
    if first_worker and extends and build.declared(chosen.extend).decode is None:
        # Seen with torch_native: that worker's batch does not say how long the prefix is that an extend reads.
        raise BackendError(
            f"Without overlap schedule, this release re-reads accepted tokens in a way that {chosen.extend!r}, which "
            "brings no multi-step backend of its own, cannot follow",
            where=registry.where(chosen.extend),
            found=str(chosen),
            remedy=f"select it for decode alone: {FLAG} prefill=triton,decode={chosen.extend}",
        )
    topk = config.speculative_eagle_topk or 1
    if names and config.speculative_algorithm == "FROZEN_KV_MTP" and topk > 1:
        raise BackendError(
            f"Frozen-KV MTP drafts topk > 1 on backends of its own list only, not on {names[0]!r}",
            where=asked_for,
            found=f"--speculative-eagle-topk {topk}",
            remedy="set --speculative-eagle-topk 1",
        )


def _check(name: str, server_args: Any, config: Any, *, drafts_steps: bool) -> None:
    backend = build.declared(name)
    topk, page_size = config.speculative_eagle_topk or 1, config.page_size or 1
    where = registry.where(name)
    if drafts_steps and backend.max_topk is not None and topk > backend.max_topk:
        raise BackendError(
            f"Draft backend {name!r} drafts at most topk {backend.max_topk}",
            where=where,
            found=f"--speculative-eagle-topk {topk}",
            remedy=f"set --speculative-eagle-topk {backend.max_topk} or less",
        )
    if backend.page_sizes is not None and page_size not in backend.page_sizes:
        sizes = ", ".join(map(str, backend.page_sizes))
        raise BackendError(
            f"Draft backend {name!r} reads KV pages of {sizes} tokens only",
            where=where,
            found=f"page size {page_size}",
            remedy=f"set --page-size to one of {sizes}",
        )
    if backend.mla != "any":
        uses = _draft_uses_mla(server_args, config)
        if uses != (backend.mla == "required"):
            raise build.mla_error(backend, uses)


def _draft_uses_mla(server_args: Any, config: Any) -> bool:
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig

    draft = ModelConfig.from_server_args(
        server_args,
        model_path=config.speculative_draft_model_path,
        model_revision=config.speculative_draft_model_revision,
        is_draft_model=True,
    )
    return bool(draft.attention_arch == AttentionArch.MLA)


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
