"""The rows of a request table that draft decode needs where those of the request table itself will not do.

With several branches, each needs a row of its own: the prefix's slots, then the branch's. With a draft window, a row holds
what the window keeps. One compact table serves all steps of a draft; the request table is never copied.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    Proxy = wrapt.ObjectProxy[Any]
else:
    # Only wrapt 2.2 and newer can be subscripted at run time.
    Proxy = wrapt.ObjectProxy


@dataclass(frozen=True)
class Window:
    """What a draft window keeps of a longer prefix: its first ``sinks`` tokens and the last ones, ``size`` in all."""

    size: int
    sinks: int


class BranchTable(Proxy):
    """The request-to-token pool with a row per branch: ``topk`` times as many, in a table of their own.

    With a draft window, a row holds what the window keeps.

    Inner backends keep the pool or the table itself from when they are built, so both stay the same object for
    good and only what the table shows is exchanged.
    """

    size: Any = None
    req_to_token: Any = None

    def __init__(self, pool: Any, topk: int, window: Window | None) -> None:
        import torch

        super().__init__(pool)
        self._self_topk, self._self_window = topk, window
        table = pool.req_to_token
        self.size = pool.size * topk
        # No memory: every element is the same one until the first batch.
        storage = table.new_zeros(1).untyped_storage()
        shape = (table.shape[0] * topk, table.shape[1])
        self.req_to_token = torch.empty(0, dtype=table.dtype, device=table.device)
        self.req_to_token.set_(storage, 0, shape, (0, 0))

    def fill(
        self,
        rows: Any,
        seq_lens: Any,
        num_steps: int,
        page_size: int,
        longest: int | None,
        graph: GraphBuffers | None,
    ) -> Any:
        """Shows the branches of ``rows`` and returns their row numbers. ``longest`` is the most that one shows of a prefix."""
        import torch

        source, topk, window = self.__wrapped__.req_to_token, self._self_topk, self._self_window
        tail = page_size - 1 + num_steps
        most = source.shape[1] if window is None else min(window.size, source.shape[1])
        if longest is None:
            longest = min(int(seq_lens.max()), most) if graph is None else most
        size, width = len(rows) * topk, longest + tail
        numbers = torch.arange(size, dtype=rows.dtype, device=rows.device)
        if graph is None:
            table = source.new_zeros((size, width))
            self.req_to_token.set_(table)
        else:
            numbers = graph.keep("numbers", numbers, (graph.size,))
            whole = graph.buffer("table", source, (graph.size, most + tail))
            self.req_to_token.set_(whole)
            table = whole[:size, :width]
        fill_branches(table, source, rows, seq_lens, topk, num_steps, page_size, window)
        return numbers


class BranchRunner(Proxy):
    """The draft's runner as the inner backends see it at topk > 1."""

    req_to_token_pool: Any = None
    kv_index_translator: Any = None

    def __init__(self, runner: Any, branches: BranchTable) -> None:
        super().__init__(runner)
        self.req_to_token_pool = branches
        translator = getattr(runner, "kv_index_translator", None)
        if translator is not None:
            translator = copy(translator)
            translator.req_to_token = branches.req_to_token
        self.kv_index_translator = translator


class GraphBuffers:
    """Tensors at addresses that captured graphs may hold, for ``size`` rows at most."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._buffers: dict[str, Any] = {}

    def buffer(self, name: str, like: Any, shape: tuple[int, ...]) -> Any:
        if name not in self._buffers:
            self._buffers[name] = like.new_zeros(shape)
        return self._buffers[name]

    def keep(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        """Copies ``value`` into the front of the last dimension of the buffer, and returns that part."""
        part = self.buffer(name, value, shape)[..., : value.shape[-1]]
        part.copy_(value)
        return part


def fill_branches(
    table: Any,
    req_to_token: Any,
    rows: Any,
    seq_lens: Any,
    topk: int,
    num_steps: int,
    page_size: int,
    window: Window | None = None,
) -> None:
    """Writes one row per branch into ``table``: the request's prefix, then the branch's own slots.

    In a request's row, SGLang lays the branches out one after the other behind the prefix. With pages, each
    begins on a page of its own, with a duplicate of the prefix's last, partial page: whole pages can be read.

    Args:
        table: ``(batch * topk, width)``; width is at least the longest of ``seq_lens``, or what the window keeps of it,
            plus ``page_size - 1 + num_steps``.
        req_to_token: The request table, ``(requests, length)``.
        rows: ``(batch,)`` rows of the request table.
        seq_lens: ``(batch,)`` lengths of the committed prefixes.
        window: What is kept of a prefix, on pages of one token; None for all of it.
    """
    import torch

    batch, length = len(rows), req_to_token.shape[1]
    lens = seq_lens.long()
    branches = table.unflatten(0, (batch, topk))
    left_out: Any = 0
    if window is None:
        shared = min(table.shape[1], length)
        branches[:, :, :shared] = req_to_token[:, :shared][rows].unsqueeze(1)
    else:
        left_out = (lens - window.size).clamp(min=0)[:, None]
        kept = torch.arange(min(table.shape[1], window.size, length), device=table.device)
        kept = (kept + left_out * (kept >= window.sinks)).clamp_(max=length - 1)
        branches[:, :, : kept.shape[1]] = req_to_token[rows[:, None], kept].unsqueeze(1)
        left_out = left_out[:, None]
    # One slot more than the last page needs is harmless: nothing is read behind a row's length.
    offset = torch.arange(page_size - 1 + num_steps, device=table.device)
    partial = lens % page_size
    start = (lens - partial)[:, None, None] + offset
    region = (partial + num_steps + page_size - 1) // page_size * page_size
    source = start + region[:, None, None] * torch.arange(topk, device=table.device)[None, :, None]
    slots = req_to_token[rows[:, None, None], source.clamp_(max=length - 1)]
    branches.scatter_(2, (start - left_out).expand_as(source), slots)


def step_lengths(seq_lens: Any, topk: int, count: int) -> Any:
    """What each step attends to: ``(count, batch * topk)`` lengths, of ``seq_lens`` of shape ``(batch,)``."""
    import torch

    steps = torch.arange(1, count + 1, dtype=seq_lens.dtype, device=seq_lens.device)
    return seq_lens.repeat_interleave(topk)[None, :] + steps[:, None]
