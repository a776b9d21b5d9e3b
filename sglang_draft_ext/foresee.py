"""The draft's plan of a launch whose model is not there: what it would be, and what it depends on.

A launch is settled and checked by the same functions as when it starts, once for each thing that the model or SGLang's
defaults may decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sglang_draft_ext import checks, fallback, launch, points
from sglang_draft_ext.errors import DraftExtError
from sglang_draft_ext.hooks import activation
from sglang_draft_ext.launch import Plan
from sglang_draft_ext.selection import ROLES, Role
from sglang_draft_ext.settings import Settings
from sglang_draft_ext.surface import Surface


def foresee(
    given: Mapping[str, Any], names: Mapping[Role, str], sources: Mapping[Role, str], surface: Surface
) -> tuple[Plan, list[str]]:
    """The plan of a launch, and what only the launch decides; a role is None where its backend depends on that.

    Args:
        given: The fields of the server arguments that flags give; None where none does.
        names, sources: The roles that the launch names, and where.
        surface: The release.

    Raises:
        DraftExtError: the launch is refused, whatever is decided.
    """
    unknown = _unknown(given, surface)

    def made(assumed: Mapping[str, Any]) -> Plan | DraftExtError:
        try:
            return _settled(_Case(given, assumed), names, sources)
        except DraftExtError as error:
            return error

    cases = [dict(zip(unknown, values, strict=True)) for values in itertools.product(*unknown.values())]
    for case in cases:
        plan = made(case)
        if isinstance(plan, Plan):
            break
    else:
        refusal = made(cases[0])
        assert isinstance(refusal, DraftExtError)
        raise refusal
    settled, at_launch = plan, []
    for what, values in unknown.items():
        outcomes = {value: made({**case, what: value}) for value in values}
        plans = {value: outcome for value, outcome in outcomes.items() if isinstance(outcome, Plan)}
        if all(outcome == plan for outcome in outcomes.values()):
            continue
        at_launch.append(_ASSUMED[what] + _refused(outcomes))
        for role in ROLES:
            if len({getattr(each.selection, role) for each in plans.values()}) > 1:
                whys = {each.sources[role] for each in plans.values()}
                settled = _with(settled, {role: (None, whys.pop() if len(whys) == 1 else "see below")})
    return settled, at_launch


def _refused(outcomes: Mapping[object, Plan | DraftExtError]) -> str:
    """Which of the *outcomes* is a refusal, in words."""
    refused = {value: made.problem for value, made in outcomes.items() if isinstance(made, DraftExtError)}
    allowed = [value for value in outcomes if value not in refused]
    if not refused:
        return ""
    why = next(iter(refused.values()))
    if set(outcomes) == {False, True}:
        return f" (refused if it {'does' if True in refused else 'does not'}: {why})"
    if len(refused) < len(allowed):
        return f" (refused if it is {' or '.join(map(str, refused))}: {why})"
    return f" (refused unless it is {' or '.join(map(str, allowed))})"


# What may not be known, by the field of the arguments that would say it.
_ASSUMED = {
    "attention_backend": "the target's backend, which no flag gives",
    "draft_has_window": "whether the draft model has a sliding window of its own",
    "draft_uses_mla": "whether the draft model uses multi-head latent attention",
    "page_size": "the page size, which no flag gives",
    "speculative_eagle_topk": "the topk, which no flag gives",
}


def _unknown(given: Mapping[str, Any], surface: Surface) -> dict[str, tuple[Any, ...]]:
    """What no flag says, and what it may turn out to be, likeliest first."""
    unknown: dict[str, tuple[Any, ...]] = {"draft_uses_mla": (False, True)}
    pair = (given["prefill_attention_backend"], given["decode_attention_backend"])
    if not given["attention_backend"] and not all(pair):
        unknown["attention_backend"] = points.choices(surface)
    if given["speculative_draft_window_size"]:
        unknown["draft_has_window"] = (False, True)
    if given["page_size"] is None:
        unknown["page_size"] = (1, 16, 32, 64, 128)
    if given["speculative_eagle_topk"] is None:
        unknown["speculative_eagle_topk"] = (1, 4)
    return unknown


class _Case(checks.Launch):
    """The launch with something assumed for all that only the model or SGLang's defaults say."""

    draft_has_qsa_profile = False

    def __init__(self, given: Mapping[str, Any], assumed: Mapping[str, Any]) -> None:
        # SGLang's defaults of the number of steps are all more than one.
        steps = 2 if given["speculative_num_steps"] is None else given["speculative_num_steps"]
        values = {**given, **assumed, "speculative_num_steps": steps}
        values.pop(launch.FIELD)  # a default of the model's own would be there
        super().__init__(None, SimpleNamespace(**values))
        self.draft = SimpleNamespace(head_dim=0, is_encoder_decoder=False)
        self.draft_uses_mla = assumed["draft_uses_mla"]
        self.draft_has_window = assumed.get("draft_has_window", False)


def _settled(case: checks.Launch, names: Mapping[Role, str], sources: Mapping[Role, str]) -> Plan:
    """As `fallback.settle` and `checks.check`, with None for the platform's default, which needs the device."""
    settled = plan = launch.plan(case.config, names, sources)
    if activation.purposes:
        strict = Settings.from_environment(activation.environment).strict
        settled = fallback.settle(case, plan, strict=strict, defaults=(fallback.LAST_RESORT,))
    checks.check(case, settled)
    fell = [role for role in ROLES if getattr(settled.selection, role) != getattr(plan.selection, role)]
    return _with(settled, {role: (None, settled.sources[role]) for role in fell})


def _with(plan: Plan, changes: Mapping[Role, tuple[str | None, str]]) -> Plan:
    """*plan* with another backend, and another reason for it, in some roles."""
    names: dict[str, Any] = {role: name for role, (name, _) in changes.items()}
    reasons = {role: why for role, (_, why) in changes.items()}
    return replace(plan, selection=replace(plan.selection, **names), sources={**plan.sources, **reasons})
