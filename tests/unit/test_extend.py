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


@pytest.mark.parametrize("mode", Mode)
def test_every_door_shows_a_draft_extend_as_an_extend(mode):
    inner = Ordinary()
    backend = DraftExtendBackend(inner)
    batch = SimpleNamespace(forward_mode=mode, seq_lens=[3], touched=False)
    backend.init_forward_metadata(batch)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.init_forward_metadata_in_graph(batch)
    assert backend.forward("q", "k", "v", "layer", batch, False, sinks=1) == (
        "q",
        "k",
        "v",
        "layer",
        False,
        {"sinks": 1},
    )
    expected = Mode.EXTEND if mode.name.startswith("DRAFT") else mode
    assert inner.seen == [(expected, [3])] * 4
    assert batch.forward_mode is mode, "the batch itself is not changed"
    assert batch.touched, "everything else is the batch's"


def test_it_passes_for_the_backend_it_wraps():
    backend = DraftExtendBackend(Ordinary())
    assert isinstance(backend, Ordinary)
    backend.stamp = "accel"
    assert backend.stamp == backend.__wrapped__.stamp == "accel"
