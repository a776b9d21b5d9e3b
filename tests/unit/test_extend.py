from enum import Enum, auto
from types import SimpleNamespace

import pytest

from sglang_draft_ext.extend import DraftExtendBackend

pytestmark = pytest.mark.unit


class Mode(Enum):
    EXTEND = auto()
    DECODE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND = auto()
    DRAFT_EXTEND_V2 = auto()


class Ordinary:
    """Records the mode and the batch that each door was opened with."""

    stamp = None

    def __init__(self):
        self.seen = []

    def _note(self, batch):
        self.seen.append((batch.forward_mode, batch.seq_lens))
        batch.touched = True

    def init_forward_metadata(self, forward_batch):
        self._note(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        self._note(forward_batch)

    def init_forward_metadata_in_graph(self, forward_batch):
        self._note(forward_batch)

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        self._note(forward_batch)
        return q, k, v, layer, save_kv_cache, kwargs

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return self.forward(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)


class Lengths(list):
    """A tensor of lengths, as far as the view needs one."""

    dtype = int

    def __sub__(self, other):
        return Lengths(a - b for a, b in zip(self, other, strict=True))

    def to(self, dtype):
        return Lengths(map(dtype, self))

    def tolist(self):
        return [*self]


def a_batch(mode):
    return SimpleNamespace(
        forward_mode=mode,
        seq_lens=Lengths([9, 12]),
        extend_seq_lens=Lengths([2, 4]),
        extend_prefix_lens=Lengths([0, 3]),
        extend_prefix_lens_cpu=[0, 3],
        touched=False,
    )


@pytest.mark.parametrize("mode", Mode)
def test_every_door_shows_a_draft_extend_as_an_extend(mode):
    inner = Ordinary()
    backend = DraftExtendBackend(inner)
    batch = a_batch(mode)
    backend.init_forward_metadata(batch)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    for door in (backend.forward, backend.forward_extend):
        said = door("q", "k", "v", "layer", batch, False, sinks=1)
        assert said == ("q", "k", "v", "layer", False, {"sinks": 1})
    expected = Mode.EXTEND if mode.name.startswith("DRAFT") else mode
    assert inner.seen == [(expected, batch.seq_lens)] * 5
    assert batch.forward_mode is mode, "the batch itself is not changed"
    assert batch.touched, "everything else is the batch's"


def test_it_passes_for_the_backend_it_wraps():
    backend = DraftExtendBackend(Ordinary())
    assert isinstance(backend, Ordinary)
    backend.stamp = "accel"
    assert backend.stamp == backend.__wrapped__.stamp == "accel"


@pytest.mark.parametrize("mode", Mode)
def test_the_prefixes_are_those_of_now(mode):
    """The first EAGLE worker leaves in the batch how long the prefixes of its prompts were."""
    seen = []
    inner = Ordinary()
    inner.init_forward_metadata = lambda batch: seen.append(
        (batch.extend_prefix_lens, batch.extend_prefix_lens_cpu)
    )
    batch = a_batch(mode)
    DraftExtendBackend(inner).init_forward_metadata(batch)
    lens = [7, 8] if mode is Mode.DRAFT_EXTEND else [0, 3]
    assert seen == [(lens, lens)]
    assert batch.extend_prefix_lens_cpu == [0, 3], "the batch itself is not changed"


def test_a_batch_without_lengths_stays_without():
    inner = Ordinary()
    batch = a_batch(Mode.DRAFT_EXTEND)
    batch.extend_seq_lens = batch.extend_prefix_lens = batch.extend_prefix_lens_cpu = None
    DraftExtendBackend(inner).init_forward_metadata(batch)
    assert inner.seen == [(Mode.EXTEND, batch.seq_lens)]
