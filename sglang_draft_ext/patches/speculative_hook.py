"""Why: for DFLASH, a draft backend name outside a fixed list is replaced by flashinfer or triton with no more than a warning.
How: the resolver is wrapped; a name that was asked for is kept, every other name goes to stock.
Upstream: PR 35932 made the list extensible (0.5.20); PR 38740 asks the platform instead (0.5.21, out-of-tree platforms only).
Delete when: stock refuses unknown names instead of replacing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_draft_ext.patches.server_args import resolved, write
from sglang_draft_ext.registry import registry


def resolve_dflash(
    wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wrapper of ``_resolve_dflash_draft_attention_backend(server_args)``."""
    server_args = args[0] if args else kwargs["server_args"]
    config = resolved(server_args)
    asked = config.speculative_draft_attention_backend
    # Stock's own rule: the draft follows the target's prefill backend.
    name = asked or config.prefill_attention_backend or config.attention_backend
    if name not in registry:
        return wrapped(*args, **kwargs)
    if asked is None:
        write(server_args, name)
    return None
