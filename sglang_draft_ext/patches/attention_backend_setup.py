"""Why: once a draft backend is named, stock gives the draft runner one backend for all roles.
How: the resolver of the runner's names is wrapped; for a draft with a selection it gives the pair of the selection, from which
stock builds the runner's own backend (its prefill) and stamps both names.
Upstream: the comment "Single backend for all draft modes" of PR 14843's code marks the place.
Delete when: stock splits the draft flag by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext import launch


def resolve_strs(
    wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``resolve_attention_backend_strs(model_runner=…)``, earlier ``(server_args=…, is_draft_worker=…)``."""
    runner = kwargs.get("model_runner")
    server_args = runner.server_args if runner is not None else kwargs["server_args"]
    is_draft = runner.is_draft_worker if runner is not None else kwargs["is_draft_worker"]
    names = wrapped(*args, **kwargs)
    chosen = launch.selected(server_args) if is_draft else None
    if chosen is None:
        return names
    return type(names)(prefill=chosen.prefill, decode=chosen.decode, is_draft_override=True)
