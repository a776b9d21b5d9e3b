"""A draft that inherits what it cannot use: the target decodes on torch_native, which no draft map of stock's holds."""

from _server import speculative

TARGET = ("--prefill-attention-backend", "triton", "--decode-attention-backend", "torch_native")
AUTO = {"SGLANG_DRAFT_EXT_SELECT": "auto"}


def test_stock_ends_after_loading_both_models(servers):
    seen = servers.see(*speculative(1), *TARGET, extended=True)
    assert seen.failed
    assert "EAGLE is not supported in decode attention backend torch_native" in seen.log


def test_the_draft_falls_back_and_says_so(servers, plain):
    alone = servers.see(*speculative(1), extended=False)
    seen = servers.see(*speculative(1), *TARGET, extended=True, env=AUTO)
    assert seen.tokens == plain.tokens
    assert seen.accept_lengths == alone.accept_lengths
    reported = seen.arguments["draft_attention_backends"]
    assert {role: said["backend"] for role, said in reported.items()} == dict.fromkeys(reported, "triton")
    warnings = [line for line in seen.log.splitlines() if "draft attention backends: " in line]
    assert len(warnings) == 1
    assert (
        "decode=triton (fallback: the platform's default, because 'torch_native' cannot serve" in warnings[0]
    )


def test_strict_makes_it_an_error(servers):
    environment = {**AUTO, "SGLANG_DRAFT_EXT_STRICT": "1"}
    seen = servers.see(*speculative(1), *TARGET, extended=True, env=environment)
    assert seen.failed
    assert "'torch_native' cannot serve the draft's decode" in seen.log
    assert "Load weight" not in seen.log


def test_a_target_that_cannot_verify_is_refused(servers):
    """SGLang itself refuses flex_attention there, but not torch_native."""
    flags = [*speculative(1, "triton"), "--attention-backend", "torch_native"]
    seen = servers.see(*flags, extended=True, env=AUTO)
    assert seen.failed
    assert "'torch_native' cannot be the target's backend in speculative decoding" in seen.log
    assert "Load weight" not in seen.log
