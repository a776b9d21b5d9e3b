"""What cannot be done stops the launch before a model is loaded, and says why."""

import pytest
from _server import errors, speculative

STOCKS_ERROR = "ValueError: EAGLE is not supported in decode attention backend torch_native"


@pytest.mark.parametrize(
    "extended", [False, pytest.param(True, marks=pytest.mark.full)], ids=["stock", "installed"]
)
def test_without_the_variable_stock_refuses(servers, extended):
    seen = servers.see(*speculative(1, "torch_native"), extended=extended)
    assert seen.failed
    assert seen.exit_code != 0
    assert STOCKS_ERROR in errors(seen.log)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("torch_nativ", ["'torch_nativ'", "'torch_native'"]),
        ("mine=no_such_package.backends:Mine", ["no_such_package", "ModuleNotFoundError"]),
        pytest.param("torch_native,torch_native", ["'torch_native'", "twice"], marks=pytest.mark.full),
        pytest.param(
            "triton=sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend",
            ["'triton'", "never"],
            marks=pytest.mark.full,
        ),
        pytest.param("mine=math:pi", ["'math:pi'", "float"], marks=pytest.mark.full),
    ],
    ids=["unknown", "does-not-import", "twice", "would-replace-stock", "wrong-type"],
)
def test_a_bad_variable_stops_the_launch(servers, asked, words):
    seen = servers.see(
        *speculative(1, "torch_native"), extended=True, env={"SGLANG_DRAFT_EXT_BACKENDS": asked}
    )
    assert seen.failed
    assert seen.exit_code not in (None, 0)
    for word in ("SGLANG_DRAFT_EXT_BACKENDS", "SGLANG_DRAFT_EXT_DISABLE=1", *words):
        assert word in seen.log
    assert "Load weight" not in seen.log
