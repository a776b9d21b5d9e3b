"""Why: `/server_info` must say which backend each role of the draft got, and why.
How: the scheduler's report to its parent, which `/server_info` shows, gets one more key.
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
