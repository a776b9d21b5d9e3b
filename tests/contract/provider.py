"""A provider that only records what it was given."""

from sglang_draft_ext import DraftBackend


def attention(runner):
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

    class Recorder(AttentionBackend):
        def __init__(self, given):
            self.given = given

        def init_forward_metadata(self, forward_batch):
            raise AssertionError("not asked for here")

    return Recorder(runner)


class Steps:
    def __init__(self, runner, topk, num_steps):
        self.given = (runner, topk, num_steps)
        self.attn_backends = [attention(runner) for _ in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch):
        raise AssertionError("not asked for here")


BACKEND = DraftBackend(name="contract", attention=attention, decode=Steps)
