"""What each kind of draft worker of a release takes from a draft backend: the roles it has, or why it takes none."""

from __future__ import annotations

import ast

from sglang_draft_ext import points
from sglang_draft_ext.surface import Surface

_SPECULATIVE = "sglang.srt.speculative"
_THREE_ROLES = "prefill, extend, decode"
_ONE_BACKEND = "one backend"

# Title, module, what it takes. The first word of a title is stock's name of the algorithm or class.
_WORKERS = (
    ("EAGLE v1", "eagle_worker", _THREE_ROLES),
    ("EAGLE v2", "eagle_worker_v2", _THREE_ROLES),
    ("STANDALONE v1", "standalone_worker", _THREE_ROLES),
    ("STANDALONE v2", "standalone_worker_v2", _THREE_ROLES),
    ("multi-layer EAGLE v1", "multi_layer_eagle_worker", "prefill, extend"),
    ("multi-layer EAGLE v2", "multi_layer_eagle_worker_v2", "prefill, extend"),
    ("FROZEN_KV_MTP v1", "frozen_kv_mtp_worker", f"{_ONE_BACKEND}, topk 1"),
    ("FROZEN_KV_MTP v2", "frozen_kv_mtp_worker_v2", f"{_ONE_BACKEND}, topk 1"),
    ("DFLASH v1", "dflash_worker", _ONE_BACKEND),
    ("DFLASH v2", "dflash_worker_v2", _ONE_BACKEND),
    ("DSPARK", "dspark_components.dspark_worker_v2", _ONE_BACKEND),
)


def workers(surface: Surface) -> dict[str, str]:
    """Worker -> roles, for the workers that the release has; what begins with ``refused`` is refused at launch."""
    found = {}
    for title, module, roles in _WORKERS:
        if surface.source(f"{_SPECULATIVE}.{module}") is not None:
            hard_coded = title.startswith("multi-layer") and not multi_layer_asks(surface, module)
            found[title] = "refused: hard-coded to FlashAttention" if hard_coded else roles
    return found


def multi_layer_asks(surface: Surface, module: str = "multi_layer_eagle_worker_v2") -> bool:
    """Whether multi-layer EAGLE asks the draft maps; up to 0.5.10 its second worker builds FlashAttention itself."""
    source = f"{_SPECULATIVE}.{module}"
    return surface.source(source) is None or surface.get(source, "DraftBackendFactory") is not None


def multi_layer_prepares(surface: Surface, *, overlap: bool) -> bool:
    """Whether multi-layer EAGLE prepares the backends of a draft extend that runs outside of CUDA graphs.

    From 0.5.11 to 0.5.15.post1 its second worker does not, which it warns of.
    """
    if not overlap and surface.source(points.MULTI_LAYER_WORKER) is not None:
        return True  # the first worker serves
    source = surface.source(points.MULTI_LAYER_WORKER_V2)
    nodes = ast.walk(source.tree) if source else ()
    return source is None or any(
        isinstance(node, ast.Attribute) and node.attr == "init_forward_metadata" for node in nodes
    )
