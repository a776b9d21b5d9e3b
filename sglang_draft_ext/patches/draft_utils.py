"""Why: the two maps behind draft decode and draft extend hold stock's names only, and everything else is refused; and one name
is looked up in both.
How: every lookup goes through `_create_backend(backend_name, backend_map, error_template)`; extra names are added to the map
it is given, and a selection puts the role's name in the place of the one that stock would look up. `backend_name` does not
tell the maps apart, so the two callers are wrapped to say which role is asked for.
Upstream: no equivalent; PR 35932 opens DFLASH and DSPARK only.
Delete when: stock lets a third party register a multi-step draft backend, and splits the draft flag by role."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal

from sglang_draft_ext import catalogue, hooks, hybrid, launch
from sglang_draft_ext.build import build_decode, build_extend, stock_general
from sglang_draft_ext.registry import registry
from sglang_draft_ext.selection import Selection

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
    wrapped: Callable[..., Any], factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of the method that makes the draft extend backend, which may serve the draft's prefill, too."""
    with _asking_for("extend"):
        extend = wrapped(*args, **kwargs)
    runner = factory.draft_model_runner
    chosen = _selected(factory)
    if chosen is None or chosen.prefill == chosen.extend or not hybrid.extend_map_serves_prefill():
        return extend
    if extend is None:
        # Stock then leaves draft extend to the runner's own backend, which here is another one.
        extend = stock_general(chosen.extend, runner)
    # The runner's own backend is the prefill backend, built a moment ago; the worker is about to replace it by this one.
    both = hybrid.prefill_and_extend(runner, prefill=runner.attn_backend, extend=extend)
    both.prefill_attention_backend_str = chosen.prefill
    both.decode_attention_backend_str = chosen.extend
    return both


def create_backend(
    wrapped: Callable[..., Any], factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``_create_backend``: the same call on a map that holds the extra names too, for the selected name."""
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    role = _role.get()
    pairs = "stamps_children" in call.signature.parameters
    names = (*registry.names, *catalogue.backported(hooks.activation.surface, role))
    extra = {name: partial(_create, name, role, factory, pairs) for name in names}
    backends = call.arguments["backend_map"] = {**extra, **call.arguments["backend_map"]}
    chosen = _selected(factory)
    if chosen is None:
        return wrapped(*call.args, **call.kwargs)
    name = getattr(chosen, role)
    if not hasattr(factory, "draft_attn_backend"):
        # Before there was a draft flag, the method only looked at the target's arguments.
        if name not in backends:
            raise ValueError(call.arguments["error_template"].format(backend_type=name))
        return backends[name]()
    stock = factory.draft_attn_backend
    factory.draft_attn_backend = name
    try:
        return wrapped(*call.args, **call.kwargs)
    finally:
        factory.draft_attn_backend = stock


def _selected(factory: Any) -> Selection | None:
    return launch.selected(factory.draft_model_runner.server_args)


def _create(name: str, role: Role, factory: Any, pairs: bool) -> Any:
    """The value of a map entry: the backend, or from the release on that stamps it, ``(stamp, backend)``."""
    runner = factory.draft_model_runner
    if role == "decode":
        backend = build_decode(name, runner, factory.topk, factory.speculative_num_steps)
    else:
        backend = build_extend(name, runner)
    return (name, backend) if pairs else backend
