"""Multi-step draft decode out of any attention backend.

Step ``i`` of a draft attends to the committed prefix plus the ``i + 1`` tokens drafted so far on its branch, and
that is an ordinary decode: of the same rows of the request table at topk 1, and of one row per branch at topk > 1 (`branches`).
So each step gets an ordinary backend and a view of the batch in which its rows and lengths are the step's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sglang_draft_ext.branches import BranchRunner, BranchTable, GraphBuffers, Proxy, Window, step_lengths
from sglang_draft_ext.errors import BackendError

SPEC_UTILS = "sglang.srt.speculative.spec_utils"
DRAFT_WINDOW = "resolve_draft_decode_window"
_DECODE = "the draft's decode role"
PER_TOKEN = frozenset(("q_rope", "k_rope", "topk_indices", "llama_4_scaling", "idx_q", "idx_k", "idx_v"))
"""Keywords of ``AttentionBackend.forward`` that hold a row per token; others, such as ``sinks``, hold one per head."""


class MultiStepDraftBackend:
    """The multi-step draft decode backend of an ordinary ``AttentionBackend``.

    Args:
        model_runner: The draft's ``ModelRunner``.
        topk: Branches per request, ``--speculative-eagle-topk``.
        speculative_num_steps: Draft steps, ``--speculative-num-steps``.
        attention: Called once per step with the runner, or with a view of it whose request table is the
            branches'; returns a new ``AttentionBackend`` each time.

    Attributes:
        attn_backends: One backend per step; step ``i`` serves the forward that drafts token ``i + 2``.
        supports_cuda_graph: Whether the inner backend implements CUDA graph capture.
        needs_cpu_seq_lens: Whether batches must carry ``seq_lens_cpu``.

    Raises:
        BackendError: the runner or the inner backend is of a kind that cannot be drafted this way.
    """

    def __init__(
        self, model_runner: Any, topk: int, speculative_num_steps: int, *, attention: Callable[[Any], Any]
    ) -> None:
        from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

        self.topk = topk
        self.speculative_num_steps = speculative_num_steps
        self.page_size: int = _page_size(model_runner)
        # Where SGLang publishes the container itself as the current backend, it reads the pools from here.
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.kv_index_translator = getattr(model_runner, "kv_index_translator", None)
        self._window = _draft_window(model_runner)
        translates = bool(getattr(self.kv_index_translator, "is_translating", False))
        _refuse_none(topk, speculative_num_steps)
        problem = refusal(
            topk=topk,
            page_size=self.page_size,
            windowed=self._window is not None,
            unified=translates,
            encoder_decoder=getattr(model_runner.model_config, "is_encoder_decoder", False),
        )
        if problem:
            raise problem

        self._branches = None
        if topk > 1 or self._window is not None:
            self._branches = BranchTable(self.req_to_token_pool, topk, self._window)
        runner = model_runner if self._branches is None else BranchRunner(model_runner, self._branches)
        # Releases that build draft backends in EAGLEWorker keep one more than there are draft forwards.
        spare = find_spec("sglang.srt.speculative.draft_utils") is None
        inner: list[Any] = []
        for _ in range(speculative_num_steps - (not spare)):
            backend = attention(runner)
            _refuse_backend(backend, AttentionBackend, attention, inner)
            if self._branches is not None:
                _refuse_other_table(backend, attention, self.req_to_token_pool)
            if translates:
                _refuse_untranslated(backend, attention)
            inner.append(backend)
        self.attn_backends = [_StepBackend(backend, self) for backend in inner]
        self.supports_cuda_graph = bool(inner) and all(map(captures, inner))
        # The width of the branch table is a host number.
        self.needs_cpu_seq_lens = self._branches is not None or any(
            getattr(b, "needs_cpu_seq_lens", True) for b in inner
        )
        self._graph: GraphBuffers | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Prepares every step for an eager draft of the batch."""
        self._plan(forward_batch, forward_batch.batch_size)
        for step in self.attn_backends:
            step.init_forward_metadata(forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates what captured graphs read.

        Raises:
            BackendError: the inner backend cannot be captured in a CUDA graph.
        """
        if not self.supports_cuda_graph:
            raise BackendError(
                "The draft backend cannot be captured in a CUDA graph",
                where="the draft's decode CUDA graph",
                found=f"{kinds(self)} implements no capture",
                remedy="launch with --disable-cuda-graph or choose another draft decode backend",
            )
        self._graph = GraphBuffers(max_bs * self.topk)
        for step in self.attn_backends:
            step.init_cuda_graph_state(max_bs * self.topk, max_num_tokens)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Prepares every step for the capture or the replay of a graph (releases from 0.5.13)."""
        self._plan(forward_batch, forward_batch.batch_size, self._graph)
        for step in self.attn_backends:
            step.init_forward_metadata_out_graph(forward_batch, in_capture=in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """The part of the preparation that is recorded in the graph (releases from 0.5.13)."""
        for step in self.attn_backends:
            step.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_capture_cuda_graph(self, forward_batch: Any) -> None:
        """Prepares every step for the capture of a graph (releases up to 0.5.12)."""
        self._plan(forward_batch, forward_batch.batch_size, self._graph)
        for step in self.attn_backends:
            view = step.view(forward_batch)
            step.__wrapped__.init_forward_metadata_capture_cuda_graph(
                view.batch_size,
                view.batch_size,
                view.req_pool_indices,
                view.seq_lens,
                encoder_lens=None,
                forward_mode=view.forward_mode,
                spec_info=None,
            )

    def init_forward_metadata_replay_cuda_graph(self, forward_batch: Any, bs: int) -> None:
        """Prepares every step for the replay of a graph of ``bs`` requests (releases up to 0.5.12)."""
        self._plan(forward_batch, bs, self._graph)
        for step in self.attn_backends:
            view = step.view(forward_batch)
            step.__wrapped__.init_forward_metadata_replay_cuda_graph(
                view.batch_size,
                view.req_pool_indices,
                view.seq_lens,
                view.seq_lens_sum,
                encoder_lens=None,
                forward_mode=view.forward_mode,
                spec_info=None,
                seq_lens_cpu=view.seq_lens_cpu,
            )

    def on_after_cuda_graph_warmup(self) -> None:
        """Passes the end of the warm-up on to the inner backends that ask for it."""
        for step in self.attn_backends:
            hook = getattr(step, "on_after_cuda_graph_warmup", None)
            if hook is not None:
                hook()

    def _plan(self, batch: Any, bs: int, graph: GraphBuffers | None = None) -> None:
        """Gives every step its rows and lengths in this batch; with ``graph``, in tensors that stay in place."""
        if bs == 0 or batch.forward_mode.is_idle():
            for step in self.attn_backends:
                step.step_rows = None
            return
        topk, num_steps, count = self.topk, self.speculative_num_steps, len(self.attn_backends)
        size = bs * topk
        prefixes, cpu = batch.seq_lens[:bs], getattr(batch, "seq_lens_cpu", None)
        lengths = step_lengths(self._kept(prefixes), topk, count)
        cpu_kept = None if cpu is None else self._kept(cpu[:bs])
        cpu_lengths = None if cpu_kept is None else step_lengths(cpu_kept, topk, count)
        total = getattr(batch, "seq_lens_sum", None) if cpu_kept is None else int(cpu_kept.sum())
        rows = batch.req_pool_indices[:bs]
        if self._branches is not None:
            longest = None if cpu_kept is None else int(cpu_kept.max())
            rows = self._branches.fill(rows, prefixes, num_steps, self.page_size, longest, graph)
        if graph is not None:
            lengths = graph.keep("lengths", lengths, (count, graph.size))
        written = _written_by_step(batch, bs, topk, num_steps)
        columns = getattr(batch, "kv_loc_cols", None)
        longest_host = getattr(batch, "max_seq_len_host", None)
        for i, step in enumerate(self.attn_backends):
            step.step_rows = _StepRows(
                batch_size=size,
                req_pool_indices=rows,
                seq_lens=lengths[i],
                seq_lens_cpu=None if cpu_lengths is None else cpu_lengths[i],
                seq_lens_sum=None if total is None else topk * total + size * (i + 1),
                # Both are upper bounds, to a draft window as well.
                max_seq_len_host=None if longest_host is None else longest_host + i + 1,
                out_cache_loc=None if written is None else written[i],
                # A chain's steps are the leading columns of a window that is wider when the target plans it.
                kv_loc_cols=slice(columns.start + i, columns.start + i + 1)
                if isinstance(columns, slice)
                else slice(i, None, num_steps),
            )

    def _kept(self, seq_lens: Any) -> Any:
        """How much of each prefix is attended to."""
        return seq_lens if self._window is None else seq_lens.clamp(max=self._window.size)


@dataclass(frozen=True)
class _StepRows:
    """What one step's decode reads: ``batch_size`` rows, one per branch, and what it writes."""

    batch_size: int
    req_pool_indices: Any
    seq_lens: Any
    seq_lens_cpu: Any
    seq_lens_sum: int | None
    max_seq_len_host: int | None
    out_cache_loc: Any
    kv_loc_cols: slice


class _StepBatch(Proxy):
    """A ``ForwardBatch`` as one step sees it: the names in the class body are its own, all others are live."""

    batch_size: Any = None
    forward_mode: Any = None
    req_pool_indices: Any = None
    seq_lens: Any = None
    seq_lens_cpu: Any = None
    seq_lens_sum: Any = None
    max_seq_len_host: Any = None
    out_cache_loc: Any = None
    kv_loc_cols: Any = None
    req_to_token_pool: Any = None
    # A draft input would make backends that know of drafts do their own draft arithmetic.
    spec_info: Any = None

    def __init__(self, batch: Any, pool: Any, rows: _StepRows | None) -> None:
        super().__init__(batch)
        self._self_rows = rows
        self.req_to_token_pool = pool
        mode = batch.forward_mode
        self.forward_mode = mode if mode.is_idle() else type(mode).DECODE
        for name in _StepRows.__dataclass_fields__:
            setattr(self, name, getattr(batch, name, None) if rows is None else getattr(rows, name))


class _StepBackend(Proxy):
    """The inner backend of one step. Both doors, preparation and attention, open onto the step's view."""

    # The model's layers look the pools up here, for the batch's own rows: the runner's pools, not the branches'.
    req_to_token_pool: Any = None
    token_to_kv_pool: Any = None
    kv_index_translator: Any = None
    step_rows: _StepRows | None = None

    def __init__(self, backend: Any, container: MultiStepDraftBackend) -> None:
        super().__init__(backend)
        self.req_to_token_pool = container.req_to_token_pool
        self.token_to_kv_pool = getattr(backend, "token_to_kv_pool", container.token_to_kv_pool)
        self.kv_index_translator = container.kv_index_translator
        branches = container._branches
        self._self_pool = container.req_to_token_pool if branches is None else branches
        self._self_shown: _StepBatch | None = None

    def view(self, forward_batch: Any) -> _StepBatch:
        """The view of a batch: the same for every layer, until the step is prepared for another."""
        if forward_batch.forward_mode.is_idle() or forward_batch.batch_size == 0:
            return _StepBatch(forward_batch, self._self_pool, None)
        if self.step_rows is None:
            raise BackendError(
                "A draft step ran before its batch was prepared",
                where="the multi-step draft decode backend",
                found="no call of init_forward_metadata for this batch",
                remedy="report the launch line and the SGLang release",
            )
        shown = self._self_shown
        if shown is None or shown._self_rows is not self.step_rows or shown.__wrapped__ is not forward_batch:
            shown = self._self_shown = _StepBatch(forward_batch, self._self_pool, self.step_rows)
        return shown

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.__wrapped__.init_forward_metadata(self.view(forward_batch))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self.__wrapped__.init_forward_metadata_out_graph(self.view(forward_batch), in_capture=in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        self.__wrapped__.init_forward_metadata_in_graph(self.view(forward_batch))

    def get_indexer_metadata(self, layer_id: int, forward_batch: Any) -> Any:
        return self.__wrapped__.get_indexer_metadata(layer_id, self.view(forward_batch))

    def forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return self._attend(self.__wrapped__.forward, q, k, v, layer, forward_batch, args, kwargs)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return self._attend(self.__wrapped__.forward_decode, q, k, v, layer, forward_batch, args, kwargs)

    def _attend(
        self,
        attend: Callable[..., Any],
        q: Any,
        k: Any,
        v: Any,
        layer: Any,
        forward_batch: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        view = self.view(forward_batch)
        # What the step writes was cut out of the batch's slots by the worker, for this forward, already.
        view.out_cache_loc = forward_batch.out_cache_loc
        tokens, rows = q.shape[0], view.batch_size
        if tokens == rows or view.forward_mode.is_idle():
            return attend(q, k, v, layer, view, *args, **kwargs)

        # Data-parallel attention pads the tokens after the batch was prepared; the padding has no rows.
        view.out_cache_loc = view.out_cache_loc[:rows]
        q, k, v = (None if value is None else value[:rows] for value in (q, k, v))
        cut = {
            name: value[:rows] for name, value in kwargs.items() if name in PER_TOKEN and value is not None
        }
        out = attend(q, k, v, layer, view, *args, **{**kwargs, **cut})
        padded = out.new_zeros((tokens, *out.shape[1:]))
        padded[:rows] = out
        return padded


def _written_by_step(batch: Any, bs: int, topk: int, num_steps: int) -> Any:
    """The slots that each step writes, ``(num_steps, batch * topk)``; None where the batch lacks some."""
    slots = getattr(batch, "out_cache_loc", None)
    if slots is None or slots.numel() != bs * topk * num_steps:
        return None
    return slots.reshape(bs, topk, num_steps).permute(2, 0, 1).reshape(num_steps, bs * topk)


def _page_size(runner: Any) -> int:
    allocator = getattr(runner, "token_to_kv_pool_allocator", None)
    return int(getattr(allocator, "page_size", None) or getattr(runner, "page_size", None) or 1)


def captures(backend: Any) -> bool:
    """Whether a draft backend, or a multi-step one, can be captured in a CUDA graph.

    It may say so itself (``supports_cuda_graph``). Else it must have the methods; ``AttentionBackend`` has them, unimplemented.
    """
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

    says = getattr(backend, "supports_cuda_graph", None)
    if says is not None:
        return bool(says)
    names = ["init_cuda_graph_state"]
    if hasattr(AttentionBackend, "init_forward_metadata_capture_cuda_graph"):
        names += ["init_forward_metadata_capture_cuda_graph", "init_forward_metadata_replay_cuda_graph"]
    missing = (None, *(getattr(AttentionBackend, name) for name in names))
    return all(getattr(type(backend), name, None) not in missing for name in names)


def kinds(backend: Any) -> str:
    """The class of a backend, or those of a multi-step one's steps, as its provider knows them."""
    found = getattr(backend, "attn_backends", None) or [backend]
    return ", ".join(sorted({type(getattr(each, "__wrapped__", each)).__name__ for each in found}))


def refusal(
    *, topk: int, page_size: int, windowed: bool, unified: bool, encoder_decoder: bool
) -> BackendError | None:
    """Why no general backend can be made into a multi-step one for such a draft; None if one can.

    Args:
        topk: Branches per request.
        page_size: Tokens per KV page.
        windowed: Whether the draft's decode keeps to ``--speculative-draft-window-size``.
        unified: Whether the KV indices of the draft are those of a unified memory pool, which translates them.
        encoder_decoder: Whether the draft model has an encoder.
    """
    if encoder_decoder:
        return BackendError(
            "An encoder-decoder model cannot be drafted with a general attention backend",
            where=_DECODE,
            found="model_config.is_encoder_decoder",
            remedy="choose another draft model",
        )
    if windowed and page_size > 1:
        return BackendError(
            "A general attention backend reads whole pages, which a draft window would cut",
            where="--speculative-draft-window-size",
            found=f"page size {page_size}",
            remedy="set --page-size 1, leave that flag out, or choose a stock draft backend",
        )
    if unified and (topk > 1 or windowed):
        return BackendError(
            "A general attention backend drafts neither several branches nor in a window over translated KV indices",
            where=_DECODE,
            found=f"topk {topk} on a unified KV pool",
            remedy="launch without the unified memory pool, or with --speculative-eagle-topk 1 and no draft window",
        )
    return None


def _refuse_none(topk: int, num_steps: int) -> None:
    if topk < 1 or num_steps < 1:
        raise BackendError(
            "A draft needs at least one branch and one step",
            where="--speculative-eagle-topk, --speculative-num-steps",
            found=f"topk {topk}, {num_steps} steps",
            remedy="ask for 1 or more of each",
        )


def _draft_window(runner: Any) -> Window | None:
    """What ``--speculative-draft-window-size`` asks of the draft's decode; a model's own windows are its layers' affair."""
    if find_spec(SPEC_UTILS) is None:
        return None
    from sglang.srt.speculative import spec_utils

    resolve = getattr(spec_utils, DRAFT_WINDOW, None)
    window, sinks = (0, 0) if resolve is None else resolve(runner)
    return Window(size=window + sinks, sinks=sinks) if window else None


def _refuse_backend(backend: Any, base: type, attention: Callable[[Any], Any], earlier: list[Any]) -> None:
    where = _reference(attention)
    if not isinstance(backend, base):
        raise BackendError(
            "Draft decode needs an AttentionBackend",
            where=where,
            found=f"{type(backend).__module__}.{type(backend).__qualname__}",
            remedy="return a new AttentionBackend for the given model runner",
        )
    if any(backend is other for other in earlier):
        raise BackendError(
            "Each draft step needs a backend of its own",
            where=where,
            found="the same object for two steps",
            remedy="return a new AttentionBackend on every call",
        )


def _refuse_other_table(backend: Any, attention: Callable[[Any], Any], pool: Any) -> None:
    theirs = [name for name, value in vars(backend).items() if value is pool or value is pool.req_to_token]
    if theirs:
        raise BackendError(
            "The backend reads the request table of the draft's runner, which has no row per branch",
            where=_reference(attention),
            found=f"attribute {theirs[0]}",
            remedy="take req_to_token_pool from the model runner that is passed in",
        )


def _refuse_untranslated(backend: Any, attention: Callable[[Any], Any]) -> None:
    if getattr(backend, "kv_index_translator", None) is None:
        raise BackendError(
            "The backend reads and writes KV slots as the request table names them, which a unified memory pool moves",
            where=_reference(attention),
            found="no kv_index_translator",
            remedy="launch without the unified memory pool, or let the backend keep the runner's kv_index_translator",
        )


def _reference(attention: Callable[[Any], Any]) -> str:
    return f"{getattr(attention, '__module__', '?')}:{getattr(attention, '__qualname__', attention)}"
