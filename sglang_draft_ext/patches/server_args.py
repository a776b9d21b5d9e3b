"""Why: what was asked for must be possible before a model is loaded, and nothing may be asked for afterwards.
How: `ServerArgs.from_cli_args` and the method that resolves the arguments are wrapped: going in, the window closes and every
provider is imported; coming out, the draft's limits are checked, and what programs registered is attached for the children.
Upstream: no equivalent; stock's helpers accept a late call and ignore it.
Delete when: stock checks draft backends when it resolves its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext import build, hooks
from sglang_draft_ext.carried import Carried
from sglang_draft_ext.errors import BackendError
from sglang_draft_ext.registry import call_site, registry

_MULTI_STEP = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


def from_cli_args(
    wrapped: Callable[..., Any], _cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ServerArgs.from_cli_args(args)``."""
    _close()
    return wrapped(*args, **kwargs)


def resolution(
    wrapped: Callable[..., Any], server_args: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``ServerArgs.resolve_once()``, or of ``__post_init__()`` where arguments are resolved there."""
    _close()
    result = wrapped(*args, **kwargs)
    if registry.names:
        check_launch(server_args)
        server_args._draft_ext = Carried.of_this_process()
    return result


def _close() -> None:
    registry.close(call_site())
    for name in registry.names:
        build.declared(name)


def resolved(server_args: Any) -> Any:
    """A view of *server_args* as resolved so far; some releases keep decisions beside the record."""
    if hooks.activation.surface.get("sglang.srt.arg_groups.overrides", "resolved_view"):
        from sglang.srt.arg_groups.overrides import resolved_view

        return resolved_view(server_args)
    return server_args


def check_launch(server_args: Any) -> None:
    """Refuse a launch that asks a draft backend for something it cannot do.

    Raises:
        BackendError: topk, page size or kind of model is outside the backend's declared limits.
        HookError: this release's resolver for the launch's algorithm does not look as expected.
    """
    config = resolved(server_args)
    algorithm = config.speculative_algorithm
    if algorithm is None:
        return
    hooks.activation.require(algorithm=algorithm)
    asked = getattr(config, "speculative_draft_attention_backend", None)
    prefill = asked or config.prefill_attention_backend or config.attention_backend
    decode = asked or config.decode_attention_backend or config.attention_backend
    topk = config.speculative_eagle_topk or 1
    for name in dict.fromkeys((prefill, decode)):
        if name in registry:
            _check(name, server_args, config, topk, drafts_steps=name == decode and algorithm in _MULTI_STEP)


def _check(name: str, server_args: Any, config: Any, topk: int, *, drafts_steps: bool) -> None:
    backend = build.declared(name)
    page_size = config.page_size or 1
    where = registry.where(name)
    if drafts_steps and backend.max_topk is not None and topk > backend.max_topk:
        raise BackendError(
            f"Draft backend {name!r} drafts at most topk {backend.max_topk}",
            where=where,
            found=f"--speculative-eagle-topk {topk}",
            remedy=f"set --speculative-eagle-topk {backend.max_topk} or less",
        )
    if backend.page_sizes is not None and page_size not in backend.page_sizes:
        sizes = ", ".join(map(str, backend.page_sizes))
        raise BackendError(
            f"Draft backend {name!r} reads KV pages of {sizes} tokens only",
            where=where,
            found=f"page size {page_size}",
            remedy=f"set --page-size to one of {sizes}",
        )
    if drafts_steps and backend.decode is None and topk > 1 and page_size > 1:
        raise BackendError(
            f"Draft backend {name!r} brings no multi-step backend of its own, and the one made for it drafts topk > 1 at "
            "page size 1 only",
            where=where,
            found=f"--speculative-eagle-topk {topk} and page size {page_size}",
            remedy="set --page-size 1 or --speculative-eagle-topk 1",
        )
    if backend.mla != "any":
        uses = _draft_uses_mla(server_args, config)
        if uses != (backend.mla == "required"):
            raise build.mla_error(backend, uses)


def _draft_uses_mla(server_args: Any, config: Any) -> bool:
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig

    draft = ModelConfig.from_server_args(
        server_args,
        model_path=config.speculative_draft_model_path,
        model_revision=config.speculative_draft_model_revision,
        is_draft_model=True,
    )
    return bool(draft.attention_arch == AttentionArch.MLA)
