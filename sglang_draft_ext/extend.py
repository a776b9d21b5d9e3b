"""Draft extend for an attention backend that was written without drafts in mind.

Re-reading accepted tokens is an extend like any other: some tokens behind a prefix, causal. But SGLang gives it forward modes
of its own, and one of them (``DRAFT_EXTEND_V2``) is not an extend to ``ForwardMode.is_extend()``. So the backend sees a view of
the batch whose mode is ``EXTEND``. With the other (``DRAFT_EXTEND``, up to 0.5.12), the batch still says how long the prefixes
of its prompts were, which stock's own draft backends do not read: the view says what is true.
"""

from __future__ import annotations

from typing import Any

import wrapt


class DraftExtendBackend(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """The inner ``AttentionBackend``, to which every draft extend is an extend."""

    #: An extend of many lengths is what backends prepare outside graphs.
    supports_cuda_graph: Any = False

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._self_batch: Any = None
        self._self_shown: Any = None

    def _view(self, forward_batch: Any, *, prepare: bool = True) -> Any:
        """The view of a batch: made when the batch is prepared, and then the same for every layer."""
        if prepare or forward_batch is not self._self_batch:
            self._self_batch, self._self_shown = forward_batch, _as_extend(forward_batch)
        return self._self_shown

    def init_forward_metadata(self, forward_batch: Any) -> Any:
        return self.__wrapped__.init_forward_metadata(self._view(forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__.init_forward_metadata_out_graph(self._view(forward_batch), *args, **kwargs)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> Any:
        return self.__wrapped__.init_forward_metadata_in_graph(self._view(forward_batch))

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return self.__wrapped__.forward(
            q, k, v, layer, self._view(forward_batch, prepare=False), *args, **kwargs
        )

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """What stock's HybridAttnBackend calls in the place of ``forward``."""
        return self.__wrapped__.forward_extend(
            q, k, v, layer, self._view(forward_batch, prepare=False), *args, **kwargs
        )


class _ExtendBatch(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A ``ForwardBatch`` of a draft extend with the mode of an ordinary one, and the prefixes that it has now."""

    forward_mode: Any = None
    extend_prefix_lens: Any = None
    extend_prefix_lens_cpu: Any = None

    def __init__(self, batch: Any) -> None:
        super().__init__(batch)
        self.forward_mode = type(batch.forward_mode).EXTEND
        self.extend_prefix_lens = batch.extend_prefix_lens
        self.extend_prefix_lens_cpu = batch.extend_prefix_lens_cpu
        if batch.forward_mode.name == "DRAFT_EXTEND" and batch.extend_seq_lens is not None:
            prefixes = batch.seq_lens - batch.extend_seq_lens
            self.extend_prefix_lens = prefixes.to(batch.extend_seq_lens.dtype)
            self.extend_prefix_lens_cpu = prefixes.tolist()


def _as_extend(batch: Any) -> Any:
    return _ExtendBatch(batch) if batch.forward_mode.name.startswith("DRAFT_EXTEND") else batch
