"""Why: programs give flags as keywords of `Engine`, and stock knows no keyword for a role of the draft.
How: `Engine.__init__` is wrapped; the role keywords are folded into the keyword of the draft flag before stock sees them.
Upstream: no equivalent.
Delete when: stock splits the draft flag by role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext import launch
from sglang_draft_ext.errors import SelectionError
from sglang_draft_ext.launch import FIELD, ROLE_FIELDS


def init(wrapped: Callable[..., Any], _engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Wrapper of ``Engine.__init__(**kwargs)``."""
    roles = {role: kwargs.pop(field, None) for role, field in ROLE_FIELDS.items()}
    text = launch.flag_value(kwargs.get(FIELD), roles)
    if text is None:
        return wrapped(*args, **kwargs)
    if "server_args" in kwargs and any(roles.values()):
        raise SelectionError(
            "Engine takes no keywords beside server_args",
            where=", ".join(ROLE_FIELDS[role] for role, name in roles.items() if name),
            remedy=f"give {FIELD}={text!r} to ServerArgs",
        )
    from sglang.srt.server_args import ServerArgs

    if hasattr(ServerArgs, FIELD):
        kwargs[FIELD] = text
        return wrapped(*args, **kwargs)
    kwargs.pop(FIELD, None)
    token = launch.pending.set(text)
    try:
        return wrapped(*args, **kwargs)
    finally:
        launch.pending.reset(token)
