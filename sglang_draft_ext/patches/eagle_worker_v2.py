"""Why: the second EAGLE worker captures draft extend in a CUDA graph for the classes of a list only; others silently run eagerly.
How: the method with the list is wrapped. For a backend that says it can be captured (`DraftBackend.extend_graph`), the name of one
class of the list stands, during the call, for that class or the backend's own.
Upstream: PR 36324 and PR 40762 (open) ask the backend instead.
Delete when: stock asks the backend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from sglang_draft_ext import hybrid, points


def allow_extend(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the method whose list is of draft extend backends."""
    return _allow(wrapped, worker, "TritonAttnBackend", worker.draft_extend_attn_backend, args, kwargs)


def allow_decode(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the method whose list is, for draft extend, of multi-step draft decode backends."""
    return _allow(wrapped, worker, "TritonMultiStepDraftBackend", worker.draft_attn_backend, args, kwargs)


def _allow(
    wrapped: Callable[..., Any],
    worker: Any,
    listed: str,
    tested: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    extend = hybrid.extend_of(worker.draft_extend_attn_backend)
    if not getattr(extend, "captures_draft_extend", False):
        return wrapped(*args, **kwargs)
    names = vars(sys.modules[points.EAGLE_WORKER_V2])
    stock = names[listed]
    names[listed] = (stock, type(tested))
    try:
        return wrapped(*args, **kwargs)
    finally:
        names[listed] = stock
