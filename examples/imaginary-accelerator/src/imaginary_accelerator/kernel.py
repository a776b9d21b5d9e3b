"""The accelerator's one kernel, here in torch. Knows tensors, and nothing of SGLang."""

from __future__ import annotations

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    logit_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of the last tokens of one request to all of them.

    Args:
        q: ``(queries, heads, head_dim)``, of the last ``queries`` of the request's tokens.
        k: ``(tokens, kv_heads, head_dim)``; query head ``h`` reads head ``h * kv_heads // heads``.
        v: ``(tokens, kv_heads, v_head_dim)``.
        scale: What scores are multiplied by.
        window: How many tokens before its own a query sees; None for all.
        logit_cap: Scores are kept between plus and minus this, by tanh; 0 for no cap.
        sinks: ``(heads,)``, a score for each head that takes its share of the weights and adds no value.

    Returns:
        ``(queries, heads, v_head_dim)``, of the dtype of ``q``.
    """
    (queries, heads, _), (tokens, kv_heads, _) = q.shape, k.shape
    grouped = q.float().unflatten(1, (kv_heads, heads // kv_heads))
    scores = torch.einsum("qhgd,thd->hgqt", grouped, k.float()) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    token = torch.arange(tokens, device=q.device)
    own = token[tokens - queries :, None]
    unseen = token > own
    if window is not None:
        unseen |= token < own - window
    scores = scores.masked_fill(unseen, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(kv_heads, -1, 1, 1).expand(-1, -1, queries, 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., :tokens]
    return torch.einsum("hgqt,thd->qhgd", weights, v.float()).flatten(1, 2).to(q.dtype)
