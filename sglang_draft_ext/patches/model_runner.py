"""Why: before there was a general registry (0.5.2), names were compared one by one in a method of ModelRunner.
How: the method is wrapped; extra names that stock does not know are built here.
Upstream: replaced by the general registry.
Delete when: releases without a general registry are no longer supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext.build import build_attention, is_stock_general
from sglang_draft_ext.registry import registry


def attention_backend_from_str(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ModelRunner._get_attention_backend_from_str(backend_str)``."""
    name = args[0] if args else kwargs["backend_str"]
    if name in registry and not is_stock_general(name):
        return build_attention(name, runner)
    return wrapped(*args, **kwargs)
