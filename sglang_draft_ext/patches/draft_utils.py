"""Why: the two maps behind draft decode and draft extend hold stock's names only, and everything else is refused.
How: every lookup goes through `_create_backend(backend_name, backend_map, error_template)`; extra names are added to the map
it is given. `backend_name` does not tell the maps apart, so the two callers are wrapped to say which role is asked for.
Upstream: no equivalent; PR 35932 opens DFLASH and DSPARK only.
Delete when: stock lets a third party register a multi-step draft backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

from sglang_draft_ext.build import build_attention, build_decode
from sglang_draft_ext.registry import registry

Role = Literal["extend", "decode"]
_role: ContextVar[Role] = ContextVar("role")


@contextmanager
def _asking_for(role: Role) -> Iterator[None]:
    token = _role.set(role)
    try:
        yield
    finally:
        _role.reset(token)


def for_decode(
    wrapped: Callable[..., Any], _factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the method that makes the multi-step draft decode backend."""
    with _asking_for("decode"):
        return wrapped(*args, **kwargs)


def for_extend(
    wrapped: Callable[..., Any], _factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the method that makes the draft extend backend."""
    with _asking_for("extend"):
        return wrapped(*args, **kwargs)


def create_backend(
    wrapped: Callable[..., Any], factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``_create_backend``: the same call on a map that holds the extra names too."""
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    role = _role.get()
    pairs = "stamps_children" in call.signature.parameters
    extra = {name: partial(_create, name, role, factory, pairs) for name in registry.names}
    call.arguments["backend_map"] = {**extra, **call.arguments["backend_map"]}
    return wrapped(*call.args, **call.kwargs)


def _create(name: str, role: Role, factory: Any, pairs: bool) -> Any:
    """The value of a map entry: the backend, or from the release on that stamps it, ``(stamp, backend)``."""
    runner = factory.draft_model_runner
    if role == "decode":
        backend = build_decode(name, runner, factory.topk, factory.speculative_num_steps)
    else:
        backend = build_attention(name, runner)
    return (name, backend) if pairs else backend
