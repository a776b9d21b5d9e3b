"""Why: `/server_info` must say which backend each role of the draft got, and why.
How: the scheduler's two reports, which `/server_info` shows (the one at its start from 0.5.10 on, its state in all releases), get
one more key. Up to 0.5.16 the state is all that the server arguments hold, so what this package attached to them is taken out.
Upstream: no equivalent.
Delete when: stock reports the draft's backends by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext import launch


def init_info(
    wrapped: Callable[..., Any], scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``Scheduler.get_init_info()``."""
    info = wrapped(*args, **kwargs)
    plan = launch.of_server_args(scheduler.server_args)
    return {**info, "draft_attention_backends": plan.describe()} if plan else info


def internal_state(
    wrapped: Callable[..., Any], scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``Scheduler.get_internal_state(request)``, whose answer has an ``internal_state``."""
    answer = wrapped(*args, **kwargs)
    # A new dict: in some releases it is the arguments' own.
    state = {name: value for name, value in answer.internal_state.items() if name != "_draft_ext"}
    plan = launch.of_server_args(scheduler.server_args)
    answer.internal_state = {**state, "draft_attention_backends": plan.describe()} if plan else state
    return answer
