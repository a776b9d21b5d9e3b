"""Why: with CUDA graphs on, the worker captures the draft's decode (up to 0.5.7 its extend, too; multi-layer EAGLE its extend in
every release) whatever the backend is, and one that cannot be captured ends the launch after the models were loaded.
How: for such a backend, making a graph runner gives None, which is what the worker has with graphs switched off: the draft runs
eagerly. The target's graphs, and the draft's other graph, are captured as ever.
Upstream: PR 40762 proposes that a backend says what can be captured.
Delete when: stock asks the backend before it captures."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sglang_draft_ext import hybrid
from sglang_draft_ext.multistep import captures, kinds

logger = logging.getLogger("sglang_draft_ext")


def skip_decode(module: ModuleType, attribute: str) -> None:
    """Let the draft decode graph's class skip a container that cannot be captured."""
    _skip(getattr(module, attribute), "draft_attn_backend")


def skip_extend(module: ModuleType, attribute: str) -> None:
    """Let the draft extend graph's class skip a backend that cannot be captured."""
    _skip(getattr(module, attribute), "draft_extend_attn_backend")


def skip_multi_layer(module: ModuleType, attribute: str) -> None:
    """Let the class of multi-layer EAGLE's draft extend graphs skip backends of which one cannot be captured."""
    _skip(getattr(module, attribute), "draft_extend_attn_backend_list")


def init_multi_layer(
    wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Wrapper of ``MultiLayerEagleWorker.init_cuda_graphs()``, which keeps a graph per layer in a list; an empty one is none."""
    if worker.server_args.disable_cuda_graph or not _eager(worker.draft_extend_attn_backend_list):
        wrapped(*args, **kwargs)
    else:
        worker.cuda_graph_runner_for_draft_extend_list = []


def _skip(kind: type[Any], name: str) -> None:
    if "__new__" in vars(kind):
        return

    @functools.wraps(kind.__init__)
    def new(cls: type[Any], eagle_worker: Any, *args: Any, **kwargs: Any) -> Any:
        found = kwargs.get(name) or getattr(eagle_worker, name)
        return None if _eager(found if isinstance(found, list) else [found]) else object.__new__(cls)

    kind.__new__ = staticmethod(new)  # type: ignore[assignment]


def _eager(backends: list[Any]) -> bool:
    """Whether one of *backends* cannot be captured, so that this part of the draft runs eagerly. None is no backend."""
    captured = [hybrid.extend_of(backend) for backend in backends if backend is not None]
    unable = [backend for backend in captured if not captures(backend)]
    if unable:
        logger.warning(
            "%s cannot be captured in a CUDA graph: this part of the draft runs eagerly", kinds(unable[0])
        )
    return bool(unable)
