"""Why: with CUDA graphs on, the worker captures the draft's decode (up to 0.5.7 its extend, too) whatever the backend is, and one
that cannot be captured ends the launch after the models were loaded.
How: for such a backend, making a graph runner gives None, which is what the worker has with graphs switched off: the draft runs
eagerly. The target's graphs, and the draft's other graph, are captured as ever.
Upstream: PR 40762 proposes that a backend says what can be captured.
Delete when: stock asks the backend before it captures."""

from __future__ import annotations

import functools
import logging
from types import ModuleType
from typing import Any

from sglang_draft_ext.multistep import captures, kinds

logger = logging.getLogger("sglang_draft_ext")


def skip_decode(module: ModuleType, attribute: str) -> None:
    """Let the draft decode graph's class skip a container that cannot be captured."""
    _skip(getattr(module, attribute), "draft_attn_backend")


def skip_extend(module: ModuleType, attribute: str) -> None:
    """Let the draft extend graph's class skip a backend that cannot be captured."""
    _skip(getattr(module, attribute), "draft_extend_attn_backend")


def _skip(kind: type[Any], name: str) -> None:
    if "__new__" in vars(kind):
        return

    @functools.wraps(kind.__init__)
    def new(cls: type[Any], eagle_worker: Any, *args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get(name) or getattr(eagle_worker, name)
        if captures(backend):
            return object.__new__(cls)
        logger.warning(
            "%s cannot be captured in a CUDA graph: this part of the draft runs eagerly", kinds(backend)
        )
        return None

    kind.__new__ = staticmethod(new)  # type: ignore[assignment]
