"""Another backend for a role that merely inherits one which cannot do it.

A draft without a backend of its own follows the target's. Stock finds out that it cannot when it builds it: a backend for
multi-head latent attention under a Llama draft, a name that no draft map holds. What was asked for is never replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sglang_draft_ext import checks, hooks, points
from sglang_draft_ext.checks import Launch
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.launch import MULTI_STEP, Plan, asked_roles
from sglang_draft_ext.selection import Role

_MODEL_OVERRIDES = "sglang.srt.arg_groups.model_override_base"
_SOURCE = "fallback"
#: The default that every platform has.
LAST_RESORT = "triton"
_OWN = {"cpu": "intel_amx", "npu": "ascend", "xpu": "intel_xpu"}


def settle(launch: Launch, made: Plan, *, strict: bool, defaults: Sequence[str] = ()) -> Plan:
    """*made*, with the platform's default in the roles that inherit what they cannot use.

    Args:
        launch: The launch.
        made: The plan without a fallback; returned as it is where none is needed.
        strict: Whether needing one is an error.
        defaults: The backends to try; without any, this platform's.

    Raises:
        DraftExtError: *strict*, and one is needed; or no backend at all can do the role.
    """
    if launch.algorithm not in MULTI_STEP:
        return made
    asked = asked_roles(made)
    followed: Role = "decode" if launch.config.speculative_attention_mode == "decode" else "prefill"
    settled = made
    for role in ("prefill", "decode", "extend"):
        if role not in launch.roles or role in asked:
            continue
        if role == "extend":
            if followed in asked:
                continue  # it follows what was asked for, which is never replaced
            settled = _with(settled, role, getattr(settled.selection, followed), settled.sources[role])
        settled = _settle(launch, settled, role, strict, defaults)
    return settled


def _settle(launch: Launch, made: Plan, role: Role, strict: bool, defaults: Sequence[str]) -> Plan:
    name, source = getattr(made.selection, role), made.sources[role]
    problem = checks.refusal(launch, name, role, where=source)
    if problem is None:
        return made
    if strict:
        raise problem
    for candidate in defaults or _defaults(launch):
        if checks.refusal(launch, candidate, role, where=_SOURCE) is None:
            return _with(
                made, role, candidate, f"{_SOURCE}: the platform's default, because {_said(problem)}"
            )
    raise problem


def _said(problem: DraftExtError) -> str:
    text = problem.problem[0].lower() + problem.problem[1:]
    return f"{text}, and {problem.found}" if problem.found else text


def _with(made: Plan, role: Role, name: str, source: str) -> Plan:
    selection = replace(made.selection, **{str(role): name})
    return replace(made, selection=selection, sources={**made.sources, role: source})


def fell_back(made: Plan) -> bool:
    """Whether a role has another backend than the one it would inherit."""
    return any(source.startswith(_SOURCE) for source in made.sources.values())


def _defaults(launch: Launch) -> Iterator[str]:
    """The backends to try: what the device has of its own, what the release would choose for the draft model, triton."""
    surface = hooks.activation.surface
    device = str(launch.config.device)
    if device in _OWN and (device != "cpu" or _has_amx()):
        yield _OWN[device]
    if surface.get(_MODEL_OVERRIDES, "get_default_attn_backend"):
        from sglang.srt.arg_groups.model_override_base import get_default_attn_backend

        yield get_default_attn_backend(launch.server_args, launch.draft_uses_mla, launch.draft)
    elif surface.get(points.SERVER_ARGS, "ServerArgs._get_default_attn_backend"):
        yield launch.server_args._get_default_attn_backend(launch.draft_uses_mla, launch.draft)
    yield LAST_RESORT


def _has_amx() -> bool:
    from sglang.srt.utils import cpu_has_amx_support

    return bool(cpu_has_amx_support())
