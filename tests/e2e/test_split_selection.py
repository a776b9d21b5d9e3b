"""A split selection: the same tokens, as many accepted, and each role served by the backend that was selected for it."""

import json
from types import SimpleNamespace

import _environment
import _eras
import pytest
from _server import speculative

ASKED = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}
EXAMPLE = _environment.ROOT / "examples" / "imaginary-accelerator"
FLAG = "--speculative-draft-attention-backend"
FIELD = FLAG[2:].replace("-", "_")
DRAFTS = {"DRAFT_EXTEND", "DRAFT_EXTEND_V2"}

SPLITS = {
    "stock prefill, extra decode": ("triton", "triton", "torch_native"),
    "extra prefill, stock decode": ("torch_native", "torch_native", "triton"),
    "three different": ("triton", "torch_native", "imaginary"),
}


CLASSES = {
    "triton": "TritonAttnBackend",
    "torch_native": "TorchNativeAttnBackend",
    "imaginary": "ImaginaryAttnBackend",
}


def computed(*backends):
    """Forward mode -> the classes that computed it; ours only shows them another view of the batch, or dispatches."""
    found = {}
    for backend in backends:
        children = backend["children"].values()
        for mode in backend["calls"] if not children else ():
            found.setdefault(mode, set()).add((backend["inner"] or backend["type"]).rpartition(".")[2])
        for mode, kinds in computed(*children).items():
            found.setdefault(mode, set()).update(kinds)
    return found


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
    providers = [EXAMPLE] if "imaginary" in split else []
    seen = servers.see(*flags, extended=True, env=environment, providers=providers)
    assert seen.single is not None, f"no answer; the server's log ends with\n{seen.log[-3000:]}"
    return seen, what_served(folder)


def what_served(folder):
    """The probe's view of the one process that runs models: its draft runner, its target runner, and the rest."""
    (file,) = folder.glob("*.json")
    told = json.loads(file.read_text())
    # The first standalone workers make a draft runner that never serves, too.
    (draft,) = (runner for runner in told["runners"] if runner["draft"] and runner["decode"])
    (target,) = (runner for runner in told["runners"] if not runner["draft"])
    return SimpleNamespace(draft=draft, target=target, others=told["others"])


def test_says_the_same_as_without_speculation(plain, served):
    assert served[0].tokens == plain.tokens


def test_accepts_as_much_as_one_backend_for_all(servers, served):
    alone = servers.see(*speculative(1), extended=False)
    assert served[0].accept_lengths == alone.accept_lengths


def test_each_role_was_served_by_its_backend(served, split):
    prefill, extend, decode = split
    told = served[1]
    steps = told.draft["decode"]["steps"]
    by_mode = computed(told.draft["own"], *told.others, *steps)
    expected = {"EXTEND": prefill, "DECODE": decode, **dict.fromkeys(by_mode.keys() & DRAFTS, extend)}
    assert by_mode == {mode: {CLASSES[name]} for mode, name in expected.items()}
    assert by_mode.keys() & DRAFTS
    # Up to 0.5.3.post1 there is a backend for a last step, too, which nothing asks.
    assert all(step["calls"].keys() == {"DECODE"} for step in steps[:2])
    assert not any(step["calls"] for step in steps[2:])
    if prefill != extend:
        assert told.draft["own"]["type"].endswith("DraftPrefillExtendBackend")


def test_the_target_is_untouched(served):
    target = served[1].target
    assert target["own"]["type"].endswith("triton_backend.TritonAttnBackend")
    assert target["stamps"] == ["triton", "triton"]


def test_the_stamps_are_true(servers, served, split):
    prefill, extend, decode = split
    draft = served[1].draft
    assert draft["stamps"] == [prefill, decode]
    own, container, *steps = [
        each["stamps"] for each in (draft["own"], draft["decode"], *draft["decode"]["steps"])
    ]
    # The release that lets its draft maps give pairs began to stamp what they give.
    stamps = _eras.of(servers.release)["draft maps"] == "factory of pairs"
    unstamped = [] if stamps else [[None, None]]
    assert own in [[prefill, extend], *unstamped]
    assert all(each in [[decode, decode], *unstamped] for each in (container, *steps))


def test_the_server_says_what_each_role_got_and_why(served, split):
    seen, _ = served
    prefill, extend, decode = split
    reported = seen.arguments["internal_states"][0]["draft_attention_backends"]
    assert seen.arguments.get("draft_attention_backends", reported) == reported
    assert {role: got["backend"] for role, got in reported.items()} == {
        "prefill": prefill,
        "extend": extend,
        "decode": decode,
    }
    assert reported["prefill"]["from"] == FLAG
    assert reported["extend"]["from"] == (FLAG if extend != prefill else "default: the draft's prefill")
    assert f"draft attention backends: prefill={prefill} ({FLAG})" in seen.log
    if FIELD in seen.arguments:
        assert seen.arguments[FIELD] == f"prefill={prefill},extend={extend},decode={decode}"


def test_stock_names_get_stock_objects_only(servers, plain, tmp_path):
    """No object of this package is in the forward path, whatever else is registered."""
    environment = {**ASKED, "SGLANG_DRAFT_EXT_SELECT": "triton", "REFERENCE_PLATFORM_PROBE": str(tmp_path)}
    seen = servers.see(*speculative(1), extended=True, env=environment)
    assert seen.tokens == plain.tokens
    (file,) = tmp_path.glob("*.json")
    text = file.read_text()
    assert '"calls"' in text
    assert "sglang_draft_ext" not in text
    assert seen.arguments.get(FIELD, "triton") == "triton"


@pytest.mark.parametrize(
    ("said", "env", "flags"),
    [
        ("'verify' is not a role of the draft", ASKED, [FLAG, "verify=triton"]),
        ("SGLANG_DRAFT_EXT_BACKENDS=torch_native adds it", {}, [FLAG, "decode=torch_native"]),
        *(
            pytest.param(*more, marks=pytest.mark.full)
            for more in (
                ("is given twice", ASKED, [FLAG, "decode=triton,decode=triton"]),
                ("A role has no backend name", ASKED, [FLAG, "prefill="]),
                ("did you mean 'flashinfer'", ASKED, [FLAG, "decode=flashinfr"]),
            )
        ),
    ],
)
def test_bad_input_stops_the_launch_in_one_line(servers, said, env, flags):
    seen = servers.see(*speculative(1), *flags, extended=True, env=env)
    assert seen.failed
    assert seen.exit_code == 2
    assert said in seen.log.strip().splitlines()[-1]
    assert "Traceback" not in seen.log
