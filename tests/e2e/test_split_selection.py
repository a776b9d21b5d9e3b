"""A split selection: the same tokens, as many accepted, and each role served by the backend that was selected for it."""

import json

import pytest
from _server import speculative

ASKED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}
FLAG = "--speculative-draft-attention-backend"
DRAFTS = ("DRAFT_EXTEND", "DRAFT_EXTEND_V2")

SPLITS = {
    "stock prefill, extra decode": ("triton", "triton", "torch_native"),
    "extra prefill, stock decode": ("torch_native", "torch_native", "triton"),
    "three different": ("triton", "torch_native", "flex_attention"),
}


def classes(name):
    """The end of the class name of one stock backend."""
    return {"triton": "TritonAttnBackend", "torch_native": "TorchNativeAttnBackend"}.get(
        name, "TorchFlexAttnBackend"
    )


def served_by(backend):
    """The class that computes: ours, if any, only shows it another view of the batch."""
    return backend["inner"] or backend["type"]


@pytest.fixture(scope="session", params=SPLITS.values(), ids=SPLITS)
def split(request):
    return request.param


@pytest.fixture(scope="session")
def served(servers, split, tmp_path_factory):
    """What a server with this selection said, and what the probe saw of its draft runner."""
    prefill, extend, decode = split
    folder = tmp_path_factory.mktemp("probe")
    flags = [*speculative(1), FLAG, f"prefill={prefill},decode={decode}"]
    if extend != prefill:
        flags += ["--speculative-draft-extend-attention-backend", extend]
    names = ",".join(dict.fromkeys(name for name in split if name != "triton"))
    environment = {"SGLANG_DRAFT_EXT_BACKENDS": names, "REFERENCE_PLATFORM_PROBE": str(folder)}
    seen = servers.see(*flags, extended=True, env=environment)
    runners = [runner for file in folder.glob("*.json") for runner in json.loads(file.read_text())]
    return seen, {runner["draft"]: runner for runner in runners}


def test_says_the_same_as_without_speculation(plain, served):
    assert served[0].tokens == plain.tokens


def test_accepts_as_much_as_one_backend_for_all(servers, served):
    alone = servers.see(*speculative(1), extended=False)
    assert served[0].accept_lengths == alone.accept_lengths


def test_each_role_was_served_by_its_backend(served, split):
    prefill, extend, decode = split
    draft = served[1][True]
    own = draft["own"]
    if prefill == extend:
        assert served_by(own).endswith(classes(prefill))
        served_modes = set(own["calls"])
        assert "EXTEND" in served_modes
        assert served_modes & {*DRAFTS}
        assert served_modes <= {"EXTEND", *DRAFTS}
    else:
        assert own["type"].endswith("DraftPrefillExtendBackend")
        first, second = own["children"]["prefill_backend"], own["children"]["decode_backend"]
        assert served_by(first).endswith(classes(prefill))
        assert served_by(second).endswith(classes(extend))
        assert set(first["calls"]) == {"EXTEND"}
        assert set(second["calls"]) <= {*DRAFTS}
        assert second["calls"]
    for step in draft["decode"]["steps"]:
        assert served_by(step).endswith(classes(decode))
        assert set(step["calls"]) == {"DECODE"}
        assert all(count > 0 for count in step["calls"].values())


def test_the_target_is_untouched(served):
    target = served[1][False]
    assert target["own"]["type"].endswith("triton_backend.TritonAttnBackend")
    assert target["stamps"] == ["triton", "triton"]


def test_the_stamps_are_true(served, split):
    prefill, extend, decode = split
    draft = served[1][True]
    assert draft["stamps"] == [prefill, decode]
    assert draft["decode"]["stamps"] == [decode, decode]
    assert all(step["stamps"] == [decode, decode] for step in draft["decode"]["steps"])
    assert draft["own"]["stamps"] == [prefill, extend]


def test_the_server_says_what_each_role_got_and_why(served, split):
    seen, _ = served
    prefill, extend, decode = split
    assert (
        seen.arguments["speculative_draft_attention_backend"]
        == f"prefill={prefill},extend={extend},decode={decode}"
    )
    reported = seen.arguments["draft_attention_backends"]
    assert {role: got["backend"] for role, got in reported.items()} == {
        "prefill": prefill,
        "extend": extend,
        "decode": decode,
    }
    assert reported["prefill"]["from"] == FLAG
    assert reported["extend"]["from"] == (FLAG if extend != prefill else "default: the draft's prefill")
    assert f"draft attention backends: prefill={prefill} ({FLAG})" in seen.log


def test_stock_names_get_stock_objects_only(servers, plain, tmp_path):
    """No object of this package is in the forward path, whatever else is registered."""
    environment = {**ASKED, "SGLANG_DRAFT_EXT_SELECT": "triton", "REFERENCE_PLATFORM_PROBE": str(tmp_path)}
    seen = servers.see(*speculative(1), extended=True, env=environment)
    assert seen.tokens == plain.tokens
    (file,) = tmp_path.glob("*.json")
    text = file.read_text()
    assert '"calls"' in text
    assert "sglang_draft_ext" not in text
    assert "draft_attention_backends" not in seen.arguments
    assert seen.arguments["speculative_draft_attention_backend"] == "triton"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([FLAG, "verify=triton"], "'verify' is not a role of the draft"),
        ([FLAG, "decode=triton,decode=triton"], "is given twice"),
        ([FLAG, "prefill="], "A role has no backend name"),
        ([FLAG, "decode=flashinfr"], "did you mean 'flashinfer'"),
        ([FLAG, "decode=wave"], "SGLANG_DRAFT_EXT_BACKENDS=wave adds it"),
    ],
)
def test_bad_input_stops_the_launch_in_one_line(servers, flags, said):
    seen = servers.see(*speculative(1), *flags, extended=True, env=ASKED)
    assert seen.failed
    assert seen.exit_code == 2
    assert said in seen.log.strip().splitlines()[-1]
    assert "Traceback" not in seen.log
