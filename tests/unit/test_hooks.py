"""The patches on a fake release with the newest shapes; the real releases' own modules are contract tests."""

import json
import re

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

FACTORY = """
    from types import SimpleNamespace
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    def factory(name, **runner):
        return DraftBackendFactory(SimpleNamespace(draft_attention_backend=name, server_args=ServerArgs(), **runner), 2, 3)
"""


@pytest.fixture
def release(tmp_path):
    return write(tmp_path)


def run(folder, code, **environ):
    result = python(folder, FACTORY + code, **environ)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(folder, code="", **environ):
    """Run, expect failure, return the last line of the traceback."""
    result = python(folder, FACTORY + code, **environ)
    assert result.returncode != 0, result.stdout
    return result.stderr.strip().splitlines()[-1]


def test_an_extra_backend_in_both_maps_the_registry_and_the_choices(release):
    out = run(
        release,
        """
    import json
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, DRAFT_ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    made = factory("accel")
    stamp, decode = made.create_decode_backend()
    extend_stamp, extend = made.create_draft_extend_backend()
    print(json.dumps([
        stamp, type(decode).__name__, decode.given[1:], decode.given[0] is made.draft_model_runner,
        extend_stamp, extend.runner is made.draft_model_runner,
        ATTENTION_BACKEND_CHOICES, DRAFT_ATTENTION_BACKEND_CHOICES,
        ATTENTION_BACKENDS["accel"](7).runner,
    ]))
    """,
        SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND",
    )
    assert json.loads(out) == [
        "accel", "Steps", [2, 3], True, "accel", True,
        ["triton", "torch_native", "wave", "accel"], ["triton", "flashinfer", "accel"], 7,
    ]  # fmt: skip


def test_stock_names_keep_stock_objects_and_stock_errors(release):
    code = """
    print(factory("triton").create_decode_backend(), factory("triton").create_draft_extend_backend())
    try:
        factory("wave").create_decode_backend()
    except ValueError as error:
        print(error)
    """
    out = run(release, code, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND")
    assert out == "('triton', 'stock decode') ('triton', 'stock extend')\nno decode wave\n"


GRAPHS = """
    from types import SimpleNamespace
    from sglang.srt.speculative.eagle_draft_cuda_graph_runner import EAGLEDraftCudaGraphRunner as Decode
    from sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner import EAGLEDraftExtendCudaGraphRunner as Extend

    yes, no = (SimpleNamespace(supports_cuda_graph=captures) for captures in (True, False))
    worker = SimpleNamespace(draft_attn_backend=no, draft_extend_attn_backend=yes)
    print(Decode(worker), type(Extend(worker)) is Extend, type(Decode(worker, draft_attn_backend=yes)) is Decode)
"""


def test_what_cannot_be_captured_gets_no_graph_and_the_rest_does(release):
    out = run(release, GRAPHS, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND")
    assert out == "None True True\n"


def test_unconfigured_every_graph_is_stocks_affair(release):
    assert (
        run(release, GRAPHS.replace("Decode(worker),", "type(Decode(worker)) is Decode,", 1))
        == "True True True\n"
    )


def test_unconfigured_only_the_window_is_watched(release):
    code = """
    from sglang_draft_ext import hooks
    import sglang.srt.layers.attention.attention_registry, sglang.srt.arg_groups.speculative_hook
    print(*sorted(hook.attribute.removeprefix("ServerArgs.") for hook in hooks.activation.applied))
    """
    assert run(release, code) == "__post_init__ add_cli_args from_cli_args resolve_once\n"


def test_switched_off_nothing_is_patched(release):
    code = """
    import sys
    print(sorted(name for name in sys.modules if name.startswith(("sglang_draft_ext", "wrapt"))))
    """
    out = run(release, code, SGLANG_DRAFT_EXT_DISABLE="1", SGLANG_DRAFT_EXT_BACKENDS="not, a, name=x")
    assert out == "['sglang_draft_ext', 'sglang_draft_ext._startup']\n"


def test_the_wrappers_keep_the_signatures(release):
    code = """
    import inspect
    print(inspect.signature(DraftBackendFactory._create_backend))
    print(inspect.signature(ServerArgs.from_cli_args), DraftBackendFactory._create_backend.__qualname__)
    """
    out = run(release, code, SGLANG_DRAFT_EXT_BACKENDS="wave")
    assert out == (
        "(self, backend_name, backend_map, error_template, stamps_children=False)\n"
        "(args) DraftBackendFactory._create_backend\n"
    )


def test_register_in_a_program_before_and_after_the_imports(tmp_path):
    release = write(tmp_path)
    late_imports = """
    import sglang_draft_ext, provider
    sglang_draft_ext.register(provider.BACKEND)
    print(factory("accel").create_decode_backend()[0])
    """
    assert run(release, late_imports) == "accel\n"
    result = python(
        release, "import sglang_draft_ext, provider; sglang_draft_ext.register(provider.BACKEND)\n" + "if True:" + FACTORY
        + "    print(factory('accel').create_decode_backend()[0])"
    )  # fmt: skip
    assert result.stdout == "accel\n", result.stderr


@pytest.mark.parametrize(
    "closing",
    ["ServerArgs.from_cli_args(SimpleNamespace())", "ServerArgs().resolve_once()"],
)
def test_register_after_the_arguments_is_late(release, closing):
    code = f"""
    import sglang_draft_ext, provider
    {closing}
    sglang_draft_ext.register(provider.BACKEND)
    """
    line = refused(release, code)
    assert line.startswith("sglang_draft_ext.errors.LateRegistrationError")
    closed, late = (int(number) for number in re.findall(r"<string>:(\d+)", line)[::-1])
    assert late == closed + 1


def test_children_repeat_what_a_program_registered(release):
    code = """
    import pickle, subprocess, sys
    import sglang_draft_ext, provider
    sglang_draft_ext.register(provider.LIMITED)
    server_args = ServerArgs()
    server_args.resolve_once()
    child = "import pickle, sys; pickle.loads(sys.stdin.buffer.read());" \\
        "from sglang_draft_ext.registry import registry; print(registry.registered)"
    print(subprocess.run([sys.executable, "-c", child], input=pickle.dumps(server_args), stdout=subprocess.PIPE).stdout.decode())
    """
    out = run(release, code)
    assert "attention='provider:attention'" in out
    assert "page_sizes=(16, 64), max_topk=2" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch_natve", "did you mean 'torch_native'"),
        ("triton", "is a draft backend of this SGLang release itself"),
        ("wave,wave", "is named twice"),
        ("a=b", "is not a reference"),
    ],
)
def test_bad_names_stop_the_import_of_server_args(release, text, said):
    assert said in refused(release, SGLANG_DRAFT_EXT_BACKENDS=text)


def test_a_refused_import_is_refused_again(release):
    result = python(
        release,
        """
    for _ in range(3):
        try:
            import sglang.srt.server_args
        except Exception as error:
            print(type(error).__name__, str(error)[:40])
    """,
        SGLANG_DRAFT_EXT_BACKENDS="torch_natve",
    )
    assert result.stdout == "RegistrationError Nobody provides a draft backend 'torch_n\n" * 3


@pytest.mark.parametrize("reference", ["provider:missing", "missing:BACKEND", "provider:__name__"])
def test_bad_references_stop_the_arguments(release, reference):
    code = "    ServerArgs.from_cli_args(SimpleNamespace())"
    line = refused(release, code, SGLANG_DRAFT_EXT_BACKENDS=f"accel={reference}")
    assert line.startswith("sglang_draft_ext.errors.BackendError")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("speculative_eagle_topk=4, page_size=16", "set --speculative-eagle-topk 2 or less"),
        ("page_size=32", "set --page-size to one of 16, 64"),
    ],
)
def test_limits_are_checked_when_the_arguments_are_resolved(release, asked, said):
    launch = "    ServerArgs(speculative_algorithm='EAGLE', speculative_draft_attention_backend='limited', {}).resolve_once()"
    asking = {"SGLANG_DRAFT_EXT_BACKENDS": "limited=provider:LIMITED"}
    assert said in refused(release, launch.format(asked), **asking)
    run(release, launch.format("page_size=64, speculative_eagle_topk=1"), **asking)


def test_dflash_keeps_a_name_that_was_asked_for(release):
    code = """
    from sglang.srt.arg_groups.speculative_hook import _resolve_dflash_draft_attention_backend as resolve
    for asked in ({"speculative_draft_attention_backend": "accel"}, {"attention_backend": "accel"}, {"attention_backend": "x"}):
        server_args = ServerArgs(**asked)
        resolve(server_args)
        print(server_args.speculative_draft_attention_backend)
    """
    assert (
        run(release, code, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND") == "accel\naccel\nflashinfer\n"
    )


@pytest.mark.parametrize(
    ("role", "said"),
    [("attention", "gave no AttentionBackend"), ("decode", "gave no multi-step draft backend")],
)
def test_a_factory_that_gives_something_else_is_refused(release, role, said):
    code = f"""
    import provider, sglang_draft_ext
    given = {{"attention": provider.attention, "decode": provider.Steps, "{role}": provider.wrong}}
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="wrong", **given))
    made = factory("wrong")
    made.create_decode_backend() if "{role}" == "decode" else made.create_draft_extend_backend()
    """
    assert said in refused(release, code)


@pytest.mark.parametrize(("mla", "uses"), [("required", False), ("refused", True)])
def test_a_model_of_the_wrong_kind_is_refused(release, mla, uses):
    code = f"""
    import provider, sglang_draft_ext
    sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name="kind", attention=provider.attention, mla="{mla}"))
    factory("kind", use_mla_backend={not uses}).create_draft_extend_backend()
    factory("kind", use_mla_backend={uses}).create_draft_extend_backend()
    """
    line = refused(release, code)
    assert "a model with multi-head latent attention" in line
    assert ("the model has it" if uses else "the model does not have it") in line


DRAFT_UTILS = "srt/speculative/draft_utils.py"
CHOICES = "srt/arg_groups/choices.py"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({DRAFT_UTILS: ("def _create_backend", "def _make_backend")}, "draft_utils:DraftBackendFactory._create_backend"),
        ({DRAFT_UTILS: ("error_template, stamps", "stamps")}, "draft_utils:DraftBackendFactory._create_backend"),
        (
            {DRAFT_UTILS: ("def create_decode_backend", "def make_decode_backend")},
            "draft_utils:DraftBackendFactory.create_decode_backend",
        ),
        (
            {DRAFT_UTILS: ('return "triton", "stock decode"', 'return "stock decode"')},
            "draft_utils:DraftBackendFactory._create_triton_decode_backend",
        ),
        ({DRAFT_UTILS: None}, "draft_utils:DraftBackendFactory._create_backend"),
        (
            {"srt/layers/attention/attention_registry.py": ("ATTENTION_BACKENDS", "BACKENDS")},
            "attention_registry:ATTENTION_BACKENDS",
        ),
        ({CHOICES: ('["triton", "torch_native", "wave"]', 'list(("triton",))')}, "choices:ATTENTION_BACKEND_CHOICES"),
        ({"srt/layers/attention/attention_registry.py": None}, "attention_registry:ATTENTION_BACKENDS"),
        (
            {"srt/server_args.py": ("def resolve_once(self)", 'def __post_init__(self):\n        ""\n\n    def renamed(self)')},
            "server_args:ServerArgs.resolve_once",
        ),
    ],
)  # fmt: skip
def test_a_release_that_does_not_match_is_refused_by_the_hook(tmp_path, changes, named):
    release = write(tmp_path, changes)
    result = python(
        release, "import sglang.srt.server_args", SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND"
    )
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("sglang_draft_ext.errors.HookError: SGLang 9.9.9"), result.stderr
    assert line.count("expected") == 1 + line.count("as expected")
    assert named in line
    assert "SGLANG_DRAFT_EXT_DISABLE=1" in line
    assert python(release, "import sglang.srt.server_args").returncode == 0, "not asked for: silent"


def test_the_whole_table_is_verified_before_the_first_patch(tmp_path):
    release = write(tmp_path, {"srt/server_args.py": None})
    code = "import sglang.srt.speculative.draft_utils"
    result = python(release, code, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND")
    assert "server arguments (sglang.srt.server_args:ServerArgs.resolve_once)" in result.stderr
    assert python(release, code).returncode == 0, "not asked for: silent"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"srt/arg_groups/speculative_hook.py": ("def _resolve_dflash", "def _choose_dflash")},
            "speculative_hook:_resolve_dflash_draft_attention_backend",
        ),
        (
            {"srt/speculative/draft_worker_common.py": ("def resolve_draft", "def choose_draft")},
            "draft_worker_common:resolve_draft_worker_attention_backend",
        ),
        (
            {"srt/speculative/draft_worker_common.py": None},
            "draft_worker_common:resolve_draft_worker_attention_backend",
        ),
        (
            {CHOICES: ('["triton", "flashinfer"]', 'list(("triton", "flashinfer"))')},
            "choices:DRAFT_ATTENTION_BACKEND_CHOICES",
        ),
    ],
)
def test_hooks_of_one_algorithm_are_asked_for_with_it(tmp_path, changes, named):
    release = write(tmp_path, changes)
    worker = "from sglang.srt.speculative.somewhere import build_draft_tp_worker\n\nclass DFlashWorkerV2:\n    pass\n"
    (release / "sglang/srt/speculative/dflash_worker_v2.py").write_text(worker)
    launch = "    ServerArgs(speculative_algorithm={!r}, speculative_draft_attention_backend='accel').resolve_once()"
    asking = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
    assert named in refused(release, launch.format("DFLASH"), **asking)
    run(release, launch.format("EAGLE"), **asking)


def test_another_patcher_that_hides_a_signature_is_refused(tmp_path):
    release = write(
        tmp_path,
        {
            DRAFT_UTILS: (
                "class DraftBackendFactory:",
                "def hide(f):\n    return lambda *a: f(*a)\n\nclass DraftBackendFactory:",
            )
        },
    )
    path = release / "sglang" / DRAFT_UTILS
    path.write_text(
        path.read_text()
        + "\nDraftBackendFactory._create_backend = hide(DraftBackendFactory._create_backend)\n"
    )
    line = refused(release, SGLANG_DRAFT_EXT_BACKENDS="accel=provider:BACKEND")
    assert "was changed before this package could patch it (draft maps)" in line
