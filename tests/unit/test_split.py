"""A split selection on the fake release: from the command line to the maps."""

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

LAUNCH = """
    import argparse, pickle, sys
    from types import SimpleNamespace
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    def launch(*flags, **fields):
        parser = argparse.ArgumentParser(prog="serve")
        ServerArgs.add_cli_args(parser)
        namespace = parser.parse_args(flags)
        for name, value in {"speculative_algorithm": "EAGLE", **fields}.items():
            setattr(namespace, name, value)
        server_args = ServerArgs.from_cli_args(namespace)
        server_args.resolve_once()
        return server_args

    def made(server_args, own=None):
        runner = SimpleNamespace(
            server_args=server_args, attn_backend=own, is_draft_worker=True,
            draft_attention_backend=server_args.speculative_draft_attention_backend,
        )
        factory = DraftBackendFactory(runner, 1, 3)
        decode = factory.create_decode_backend()
        return decode[0], factory.create_draft_extend_backend()[0]
"""
FLAG = "--speculative-draft-attention-backend"
ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND,torch_native"}


@pytest.fixture
def release(tmp_path):
    return write(tmp_path)


def run(folder, code, **environ):
    return python(folder, LAUNCH + code, **environ)


@pytest.mark.parametrize(
    ("flags", "environ", "field", "maps"),
    [
        (
            [FLAG, "prefill=triton,decode=accel"],
            {},
            "prefill=triton,extend=triton,decode=accel",
            ("accel", "triton"),
        ),
        ([FLAG, "decode=accel"], {}, "prefill=triton,extend=triton,decode=accel", ("accel", "triton")),
        (
            ["--speculative-draft-decode-attention-backend", "accel"],
            {},
            "prefill=triton,extend=triton,decode=accel",
            ("accel", "triton"),
        ),
        (
            [FLAG, "accel", "--speculative-draft-decode-attention-backend", "triton"],
            {},
            "prefill=accel,extend=accel,decode=triton",
            ("triton", "accel"),
        ),
        (
            [],
            {"SGLANG_DRAFT_EXT_SELECT": "prefill=accel,decode=triton"},
            "prefill=accel,extend=accel,decode=triton",
            ("triton", "accel"),
        ),
        ([FLAG, "triton"], {"SGLANG_DRAFT_EXT_SELECT": "decode=accel"}, "triton", ("triton", "triton")),
        ([FLAG, "prefill=accel,extend=accel,decode=accel"], {}, "accel", ("accel", "accel")),
        ([], {"SGLANG_DRAFT_EXT_SELECT": "accel"}, "accel", ("accel", "accel")),
    ],
)
def test_each_role_reaches_the_creator_that_was_asked_for(release, flags, environ, field, maps):
    code = f"""
    server_args = launch(*{flags!r})
    print(server_args.speculative_draft_attention_backend, *made(server_args))
    again = pickle.loads(pickle.dumps(server_args))
    print(again.speculative_draft_attention_backend, *made(again))
    """
    result = run(release, code, **ASKING, **environ)
    assert result.stdout == f"{field} {maps[0]} {maps[1]}\n" * 2, result.stderr


def test_stock_names_need_no_variable_at_all(release):
    code = f"""
    server_args = launch({FLAG!r}, "prefill=triton,decode=triton")
    print(server_args.speculative_draft_attention_backend, *made(server_args))
    """
    assert run(release, code).stdout == "triton triton triton\n"


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_both_calls_carry_the_same_name_and_are_not_confused(release, mode):
    code = f"""
    server_args = launch({FLAG!r}, "prefill=triton,extend=triton,decode=accel", speculative_attention_mode={mode!r})
    print(*made(server_args))
    """
    assert run(release, code, **ASKING).stdout == "accel triton\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([FLAG, "verify=triton"], "'verify' is not a role of the draft"),
        ([FLAG, "decode=triton,decode=accel"], "given twice"),
        ([FLAG, "decode="], "A role has no backend name"),
        ([FLAG, "triton,accel"], "'triton' is not a role"),
        ([FLAG, "decode=acel"], "did you mean 'accel'?"),
        ([FLAG, "prefill=torch_nativ"], "did you mean 'torch_native'?"),
        ([FLAG, "decode=wave"], "SGLANG_DRAFT_EXT_BACKENDS=wave adds it"),
        (["--speculative-draft-prefill-attention-backend", ""], "A role has no backend name"),
    ],
)
def test_bad_input_stops_with_argparses_manners(release, flags, said):
    result = run(release, f"    launch(*{flags!r})", **ASKING)
    assert result.returncode == 2, result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("serve: error: ")
    assert said in line
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"speculative_algorithm": "DFLASH"}, "DFLASH drafts on one backend"),
        ({"speculative_algorithm": "FROZEN_KV_MTP"}, "FROZEN_KV_MTP drafts on one backend"),
        ({"enable_multi_layer_eagle": True}, "Multi-layer EAGLE has no draft decode"),
    ],
)
def test_roles_that_an_algorithm_does_not_have_are_refused(release, fields, said):
    result = run(release, f"    launch({FLAG!r}, 'prefill=triton,decode=accel', **{fields!r})", **ASKING)
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"speculative_algorithm": "FROZEN_KV_MTP", "speculative_eagle_topk": 2},
            "set --speculative-eagle-topk 1",
        ),
        (
            {"enable_multi_layer_eagle": True, "disable_overlap_schedule": False},
            "set --disable-overlap-schedule",
        ),
    ],
)
def test_workers_that_would_not_ask_for_the_backend_are_refused(release, fields, said):
    worker = release / "sglang/srt/speculative/multi_layer_eagle_worker_v2.py"
    worker.write_text("# builds FlashAttention itself\n")
    launch = "    launch({!r}, {!r}, **{!r})"
    line = run(release, launch.format(FLAG, "accel", fields), **ASKING).stderr.splitlines()[-1]
    assert line.startswith("sglang_draft_ext.errors.BackendError")
    assert said in line
    assert run(release, launch.format(FLAG, "triton", fields), **ASKING).returncode == 0, "not asked for"


def test_a_worker_that_prepares_no_eager_extend_takes_captured_backends_only(release):
    worker = release / "sglang/srt/speculative/multi_layer_eagle_worker_v2.py"
    worker.write_text("from sglang.srt.speculative.draft_utils import DraftBackendFactory\n")
    launch = f"    launch({FLAG!r}, {{!r}}, enable_multi_layer_eagle=True, disable_overlap_schedule=False)"
    asking = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}
    line = run(release, launch.format("torch_native"), **asking).stderr.splitlines()[-1]
    assert "'torch_native' runs outside of them" in line
    assert run(release, launch.format("triton"), **asking).returncode == 0
    assert run(release, launch.format("accel"), **ASKING).returncode == 0, "it brings a multi-step backend"
    worker.write_text(worker.read_text() + "runner.attn_backend.init_forward_metadata(batch)\n")
    assert run(release, launch.format("torch_native"), **asking).returncode == 0


def test_the_flags_are_in_the_help(release):
    result = run(release, "    launch('--help')")
    for role in ("prefill", "extend", "decode"):
        assert f"--speculative-draft-{role}-attention-backend" in result.stdout


def test_without_speculation_a_selection_is_as_idle_as_stocks_flag(release):
    code = f"""
    server_args = launch({FLAG!r}, "decode=accel", speculative_algorithm=None)
    print(server_args.speculative_draft_attention_backend)
    """
    assert run(release, code, **ASKING).stdout == "decode=accel\n"


@pytest.mark.parametrize("environ", [{}, ASKING, {**ASKING, "SGLANG_DRAFT_EXT_SELECT": "accel"}])
@pytest.mark.parametrize("flags", [[], [FLAG, "triton"], [FLAG, "decode=triton"]])
def test_arguments_may_be_resolved_again(release, flags, environ):
    code = f"""
    server_args = launch(*{flags!r})
    before = server_args.speculative_draft_attention_backend
    server_args.resolve_once()
    print(server_args.speculative_draft_attention_backend == before)
    """
    result = run(release, code, **environ)
    assert result.stdout == "True\n", result.stderr


def test_a_release_that_cannot_split_is_refused(tmp_path):
    release = write(
        tmp_path, {"srt/layers/attention/hybrid_attn_backend.py": ("def _select_backend", "def _choose")}
    )
    result = run(release, f"    launch({FLAG!r}, 'decode=accel')", **ASKING)
    assert (
        "hybrid backend (sglang.srt.layers.attention.hybrid_attn_backend:HybridAttnBackend._select_backend)"
        in (result.stderr.splitlines()[-1])
    )
    assert run(release, f"    launch({FLAG!r}, 'accel')", **ASKING).returncode == 0, "not asked for: silent"


GROUP = """
    parser = argparse.ArgumentParser(prog="bench")
    ServerArgs.add_cli_args(parser.add_argument_group("sglang"))
"""
PREFIX = """
    class Parser(argparse.ArgumentParser):
        def add_argument(self, *flags, **options):
            super().add_argument(*("--sglang-" + f[2:] if f.startswith("--") else f for f in flags), **options)

    parser = Parser(prog="bench")
    ServerArgs.add_cli_args(parser)
"""


@pytest.mark.parametrize("environ", [{}, ASKING])
@pytest.mark.parametrize(
    ("parser", "prefix"), [(GROUP, "--"), (PREFIX, "--sglang-")], ids=["group", "prefix"]
)
def test_programs_add_the_flags_to_parsers_of_their_own(release, parser, prefix, environ):
    code = f"""
{parser}
    namespace = parser.parse_args(["{prefix}{FLAG[2:]}", "decode=triton"])
    pickle.dumps(namespace)
    print([value for name, value in vars(namespace).items() if name.endswith("draft_attention_backend")])
    """
    result = run(release, code, **environ)
    assert result.stdout == "['decode=triton']\n", result.stderr


@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_without_a_draft_model_the_variable_changes_nothing(release, algorithm):
    code = f"""
    server_args = launch(speculative_algorithm={algorithm!r})
    print(server_args.speculative_draft_attention_backend)
    """
    result = run(release, code, SGLANG_DRAFT_EXT_SELECT="prefill=triton,decode=triton,extend=triton")
    assert result.stdout == "None\n", result.stderr


def test_an_engine_of_finished_arguments_takes_no_role(release):
    code = """
    from sglang.srt.entrypoints.engine import Engine
    Engine(server_args=ServerArgs(), speculative_draft_decode_attention_backend="accel")
    """
    line = run(release, code, **ASKING).stderr.splitlines()[-1]
    assert line.startswith(
        "sglang_draft_ext.errors.SelectionError: Engine takes no keywords beside server_args"
    )


def test_a_selection_that_is_refused_is_forgotten(tmp_path):
    release = write(
        tmp_path, {"srt/layers/attention/hybrid_attn_backend.py": ("def _select_backend", "def _choose")}
    )
    code = """
    from sglang_draft_ext import HookError, hooks
    try:
        hooks.activation.select("the test")
    except HookError:
        print(hooks.activation.purposes)
    """
    assert run(release, code).stdout == "()\n"


def test_a_provider_on_a_general_backend_that_is_not_there(release):
    code = """
    import sglang_draft_ext
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="mine", attention="stock:wav"))
    launch()
    """
    line = run(release, code).stderr.splitlines()[-1]
    assert line.startswith("sglang_draft_ext.errors.BackendError: 'mine' builds on 'stock:wav'")


def test_an_unknown_variable_is_warned_of(release):
    result = run(release, "    launch()", SGLANG_DRAFT_EXT_BACKEND="accel")
    assert "unknown variables: SGLANG_DRAFT_EXT_BACKEND;" in result.stderr
    assert result.returncode == 0


def test_switched_off_a_registration_does_nothing(release):
    code = """
    import sglang_draft_ext
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="mine", attention="provider:attention"))
    print("sglang_draft_ext.hooks" in sys.modules)
    """
    assert run(release, code, SGLANG_DRAFT_EXT_DISABLE="1").stdout == "False\n"
