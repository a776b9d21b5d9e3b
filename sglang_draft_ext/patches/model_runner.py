"""Why: up to 0.5.15 a method of ModelRunner builds the draft runner's own backend, one for all roles (or, before 0.5.7, the
target's); up to 0.5.13 that one serves draft extend, too; and before there was a general registry (0.5.2), another compares
names one by one. In all releases, the launches on the nodes of one server know nothing of each other's environment.
How: these methods are wrapped, and the one that joins the ranks, to compare them. For a draft with a selection, the runner gets
its prefill backend; where the runner's own backend re-reads accepted tokens too, it gets a hybrid when prefill and extend
differ. What the runner of a draft gets under an extra name is made to serve draft extend. Extra names that stock does not
know are built here.
Upstream: replaced by `attention_backend_setup` (0.5.16) and by the general registry (0.5.3).
Delete when: releases up to 0.5.15 are no longer supported, except for the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext import guard, hybrid, launch
from sglang_draft_ext.build import build_attention, extending, is_stock_general
from sglang_draft_ext.registry import registry


def attention_backend_from_str(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ModelRunner._get_attention_backend_from_str(backend_str)``."""
    name = args[0] if args else kwargs["backend_str"]
    if name in registry and not is_stock_general(name):
        return build_attention(name, runner)
    return wrapped(*args, **kwargs)


def draft_attention_backend_from_str(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Another wrapper of it, where there is a general registry and where there is none."""
    name = args[0] if args else kwargs["backend_str"]
    backend = wrapped(*args, **kwargs)
    return extending(name, backend) if runner.is_draft_worker and name in registry else backend


def attention_backend(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ModelRunner._get_attention_backend([init_new_workspace])``."""
    chosen = launch.selected(runner.server_args) if runner.is_draft_worker else None
    if chosen is None:
        return wrapped(*args, **kwargs)
    runner.prefill_attention_backend_str = chosen.prefill
    runner.decode_attention_backend_str = chosen.decode
    backend = runner._get_attention_backend_from_str(chosen.prefill, *args, **kwargs)
    if chosen.extend == chosen.prefill or hybrid.extend_map_serves_prefill():
        return backend
    extend = runner._get_attention_backend_from_str(chosen.extend, *args, **kwargs)
    return hybrid.prefill_and_extend(runner, prefill=backend, extend=extend)


def compare_ranks(
    wrapped: Callable[..., Any], runner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ModelRunner.init_torch_distributed()``: once the ranks are joined, and before a model is loaded."""
    result = wrapped(*args, **kwargs)
    if runner.server_args.nnodes > 1 and not runner.is_draft_worker:
        import torch.distributed

        plan = launch.of_server_args(runner.server_args)
        guard.agree_with_ranks(
            torch.distributed.distributed_c10d._get_default_store(),
            torch.distributed.get_rank(),
            torch.distributed.get_world_size(),
            selection=str(plan.selection) if plan else "",
            refusal=guard.untold,
        )
    return result
