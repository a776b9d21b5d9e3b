"""The fallback of a role that inherits what it cannot use, and the limits that are checked before a model is loaded."""

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

REGISTRY = "srt/layers/attention/attention_registry.py"
DRAFT_UTILS = "srt/speculative/draft_utils.py"
FLAG = "speculative_draft_attention_backend"
AUTO = {"SGLANG_DRAFT_EXT_SELECT": "auto"}

# Beside what is in every fake release: an MLA-only backend in both maps, one that drafts one branch, one with its own pages.
CREATORS = """

@register_attention_backend("mla_only")
def create_mla_only_backend(runner):
    if not runner.use_mla_backend:
        raise ValueError("mla_only backend can only be used with MLA models.")
    return TorchNative(runner)

@register_attention_backend("one_branch")
def create_one_branch_backend(runner):
    return TorchNative(runner)

@register_attention_backend("no_verify")
def create_no_verify_backend(runner):
    from sglang.srt.layers.attention.no_verify import NoVerifyBackend

    return NoVerifyBackend(runner)
"""
ONE_BRANCH = """
class OneBranchMultiStepDraftBackend:
    def __init__(self, runner, topk, num_steps):
        if topk > 1:
            raise ValueError("one branch")
"""
CREATE_ONE_BRANCH = """
    def _create_one_branch_decode_backend(self):
        from sglang.srt.layers.attention.one_branch import OneBranchMultiStepDraftBackend

        return "one_branch", OneBranchMultiStepDraftBackend(None, 1, 1)
"""
PAGES = """
def constraints(view):
    page_size = view.page_size
    if view.attention_backend == "one_branch" or view.decode_attention_backend == "one_branch":
        if page_size not in [32, 64]:
            page_size = 64
"""
LAUNCH = """
    from sglang.srt.server_args import ServerArgs
    server_args = ServerArgs(**{{"speculative_algorithm": "EAGLE", **{!r}}})
    server_args.resolve_once()
    print(server_args.speculative_draft_attention_backend)
    from sglang_draft_ext import launch
    plan = launch.of_server_args(server_args)
    print(plan and sorted(plan.sources.values()))
"""


@pytest.fixture
def release(tmp_path):
    write(tmp_path)
    sources = tmp_path / "sglang"
    attention = sources / "srt/layers/attention"
    (attention / "one_branch.py").write_text(ONE_BRANCH)
    (attention / "no_verify.py").write_text("class NoVerifyBackend:\n    pass\n")
    for name, text in (
        (REGISTRY, CREATORS),
        ("srt/arg_groups/overrides.py", PAGES),
        (DRAFT_UTILS, CREATE_ONE_BRANCH),
    ):
        path = sources / name
        path.write_text(path.read_text() + text)
    path = sources / DRAFT_UTILS
    for role, creator in (("decode", "one_branch_decode"), ("prefill", "triton_prefill")):
        old = f'"triton": self._create_triton_{role}_backend'
        new = f'{old}, "mla_only": self._create_triton_{role}_backend, "one_branch": self._create_{creator}_backend'
        path.write_text(path.read_text().replace(old, new))
    return tmp_path


def launch(folder, fields, **environ):
    return python(folder, LAUNCH.format(fields), **environ)


def given(result):
    assert result.returncode == 0, result.stderr
    return [line for line in result.stdout.splitlines() if "configuration" not in line]


def refused(result):
    assert result.returncode != 0, result.stdout
    return result.stderr.strip().splitlines()[-1]


def test_an_inherited_name_that_no_map_holds_gets_the_platforms_default(release):
    result = launch(release, {"attention_backend": "wave"}, **AUTO)
    field, sources = given(result)
    assert field == "prefill=wave,extend=triton,decode=triton"
    assert "fallback: the platform's default, because 'wave' cannot serve the draft's decode" in sources
    (warning,) = result.stderr.strip().splitlines()[-1:]
    assert "decode=triton (fallback: the platform's default" in warning


def test_an_inherited_backend_of_the_wrong_kind_gets_the_platforms_default(release):
    result = launch(release, {"attention_backend": "mla_only"}, **AUTO)
    field, sources = given(result)
    assert field == "triton", "one name for all roles is stock's own affair"
    assert "'mla_only' needs a model with multi-head latent attention" in sources
    for_mla = {"attention_backend": "mla_only", "speculative_draft_model_path": "some-mla-draft"}
    assert given(launch(release, for_mla, **AUTO)) == ["None", "None"], "it can: stock's own rule decides"


def test_only_the_roles_that_cannot_are_replaced(release):
    fields = {"prefill_attention_backend": "wave", "decode_attention_backend": "triton"}
    field, sources = given(launch(release, fields, **AUTO))
    assert field == "prefill=wave,extend=triton,decode=triton"
    assert "default: the target's decode" in sources


@pytest.mark.parametrize("fields", [{"attention_backend": "wave"}, {"attention_backend": "mla_only"}])
def test_strict_makes_it_an_error(release, fields):
    line = refused(launch(release, fields, SGLANG_DRAFT_EXT_STRICT="1", **AUTO))
    assert line.startswith("sglang_draft_ext.errors.")
    assert "default: the target's" in line


@pytest.mark.parametrize("environ", [{}, {"SGLANG_DRAFT_EXT_STRICT": "1"}])
def test_unconfigured_nothing_is_replaced(release, environ):
    code = LAUNCH.format({"attention_backend": "wave"}).replace(
        "print(plan and", "print(plan); plan and print("
    )
    assert given(python(release, code, **environ)) == ["None", "None"]


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_backend": "triton", FLAG: "mla_only"},
        {"attention_backend": "triton", FLAG: "decode=mla_only"},
        {"attention_backend": "triton", FLAG: "prefill=mla_only,decode=triton"},
    ],
)
def test_what_was_asked_for_is_never_replaced(release, fields):
    line = refused(launch(release, fields, **AUTO))
    assert "'mla_only' needs a model with multi-head latent attention" in line
    assert "speculative-draft-attention-backend" in line


def test_what_follows_from_what_was_asked_for_is_not_replaced_either(release):
    line = refused(launch(release, {FLAG: "prefill=wave,decode=triton"}))
    assert "'wave' cannot serve the draft's extend" in line


def test_a_role_may_be_named_and_the_others_fall_back(release):
    fields = {"attention_backend": "wave", FLAG: "decode=triton"}
    field, _sources = given(launch(release, fields))
    assert field == "prefill=wave,extend=triton,decode=triton"


def test_a_fallback_needs_one_backend_that_can(release):
    fields = {"attention_backend": "wave"}
    write(release, {DRAFT_UTILS: ('{"triton": self._create_triton_decode_backend}', "{}")})
    assert "'wave' cannot serve the draft's decode" in refused(launch(release, fields, **AUTO))


def test_the_releases_own_default_is_asked_first(release):
    path = release / "sglang/srt/arg_groups/model_override_base.py"
    path.write_text(
        "def get_default_attn_backend(server_args, use_mla_backend, model_config):\n"
        "    return 'mla_only' if use_mla_backend else 'one_branch'\n"
    )
    fields = {"attention_backend": "wave", "page_size": 64}
    assert given(launch(release, fields, **AUTO))[0] == "prefill=wave,extend=one_branch,decode=one_branch"
    fields["speculative_eagle_topk"] = 2
    assert given(launch(release, fields, **AUTO))[0] == "prefill=wave,extend=one_branch,decode=triton"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"speculative_eagle_topk": 2, "page_size": 64}, "set --speculative-eagle-topk 1"),
        ({"page_size": 1}, "set --page-size to one of 32, 64"),
        ({"page_size": 128}, "set --page-size to one of 32, 64"),
    ],
)
def test_limits_of_stocks_own_backends_are_checked_early(release, fields, said):
    asked = {FLAG: "decode=one_branch", **fields}
    assert said in refused(launch(release, asked))
    fits = {FLAG: "decode=one_branch", "page_size": 64}
    assert given(launch(release, fits))[0].endswith("decode=one_branch")
    one_step = {**asked, "speculative_num_steps": 1}
    assert given(launch(release, one_step))[0].endswith("decode=one_branch"), "it is not built"


def test_without_a_request_limits_are_stocks_affair(release):
    assert given(launch(release, {FLAG: "one_branch", "speculative_eagle_topk": 2})) == ["one_branch", "None"]


def test_topk_over_pages_is_for_the_backends_that_stock_lists(release):
    hook = release / "sglang/srt/arg_groups/speculative_hook.py"
    hook.write_text(
        hook.read_text() + "\ndef check(view):\n    _PAGE_TREE_SPEC_BACKENDS = ('triton', 'fa3')\n"
    )
    path = release / "sglang/srt/arg_groups/overrides.py"
    path.write_text(path.read_text().replace(PAGES, ""))  # so that nothing but the list is in the way
    module = release / "sglang/srt/layers/attention/one_branch.py"
    module.write_text(ONE_BRANCH.replace("if topk > 1", "if topk > 8"))
    tree = {"speculative_eagle_topk": 2, "page_size": 16}
    assert "set --speculative-eagle-topk 1 or --page-size 1" in refused(
        launch(release, {FLAG: "decode=one_branch", **tree})
    )
    for fields in ({**tree, "page_size": 1}, {**tree, "speculative_eagle_topk": 1}):
        assert given(launch(release, {FLAG: "decode=one_branch", **fields}))
    assert given(launch(release, {FLAG: "decode=triton", **tree}))


@pytest.mark.parametrize(
    ("draft", "model", "said"),
    [
        ("decode=triton", "sparse", "SGLang drafts with qsa for a draft model that has a QSA profile"),
        ("qsa", "sparse", None),
        ("qsa", "plain", "'qsa' drafts for models with a QSA profile only"),
        ("decode=triton", "plain", None),
    ],
)
def test_a_draft_with_a_qsa_profile_gets_what_stock_gives_it(release, draft, model, said):
    config = release / "sglang/srt/layers/attention/qsa/config.py"
    config.parent.mkdir()
    (config.parent / "__init__.py").write_text("")
    config.write_text("def parse_qsa_profile(config):\n    return config\n")
    path = release / "sglang/srt/configs/model_config.py"
    path.write_text(
        path.read_text().replace(
            "self.attention_arch =",
            "self.hf_config = 'profile' if path == 'sparse' else None\n        self.attention_arch =",
        )
    )
    path = release / "sglang" / REGISTRY
    path.write_text(
        path.read_text()
        + CREATORS.replace("mla_only", "qsa").replace("if not runner.use_mla_backend", "if 0")
    )
    path = release / "sglang" / DRAFT_UTILS
    path.write_text(
        path.read_text()
        + "\n    def _create_qwen_qsa_decode_backend(self):\n        pass\n"
        + "\n    def _create_qwen_qsa_draft_extend_backend(self):\n        pass\n"
    )
    result = launch(release, {FLAG: draft, "speculative_draft_model_path": model}, **AUTO)
    if said:
        assert said in refused(result)
    else:
        assert given(result)


@pytest.mark.parametrize("limit", [64, 256])
def test_a_declared_head_dimension(release, limit):
    provider = release / "provider.py"
    provider.write_text(
        provider.read_text()
        + f"WIDE = DraftBackend(name='wide', attention=attention, max_head_dim={limit})\n"
    )
    result = launch(release, {FLAG: "wide"}, SGLANG_DRAFT_EXT_BACKENDS="wide=provider:WIDE")
    if limit == 64:
        assert "heads of at most 64 dimensions. " in refused(result)
    else:
        assert given(result) == ["wide", "None"]


WINDOW = {"speculative_draft_window_size": 512, "page_size": 16}
UNIFIED = "over translated KV indices"


@pytest.mark.parametrize(
    ("name", "fields", "model", "said"),
    [
        ("torch_native", {}, {"is_encoder_decoder": True}, "An encoder-decoder model cannot be drafted"),
        ("accel", {}, {"is_encoder_decoder": True}, None),
        ("torch_native", WINDOW, {}, "reads whole pages, which a draft window would cut"),
        ("torch_native", {**WINDOW, "page_size": 1}, {}, None),
        ("torch_native", {**WINDOW, "speculative_num_steps": 1}, {}, None),
        ("torch_native", WINDOW, {"sliding_window_size": 1024}, None),
        ("torch_native", WINDOW, {"attention_chunk_size": 1024}, None),
        ("torch_native", WINDOW, {"architectures": ["LlamaForCausalLMEagle3"]}, None),
        ("accel", WINDOW, {}, None),
        ("triton", WINDOW, {}, None),
        ("torch_native", {"enable_unified_memory": True, "speculative_eagle_topk": 2}, {}, UNIFIED),
        ("torch_native", {"enable_unified_memory": True, **WINDOW, "page_size": 1}, {}, UNIFIED),
        ("torch_native", {"enable_unified_memory": True}, {}, None),
        ("accel", {"enable_unified_memory": True, "speculative_eagle_topk": 2}, {}, None),
    ],
)
def test_what_no_general_backend_can_draft_is_refused_before_a_model_is_loaded(
    release, name, fields, model, said
):
    sources = release / "sglang/srt"
    (sources / "speculative/spec_utils.py").write_text(
        "def resolve_draft_decode_window(model_runner):\n    pass\n"
    )
    (sources / "models").mkdir()
    (sources / "models/llama_eagle3.py").write_text("class LlamaForCausalLMEagle3:\n    pass\n")
    config = sources / "configs/model_config.py"
    for attribute, value in model.items():
        target = "self.hf_config" if attribute == "architectures" else "self"
        config.write_text(
            config.read_text().replace(
                "self.attention_arch =",
                f"{target}.{attribute} = {value!r}\n        self.attention_arch =",
            )
        )
    result = launch(
        release,
        {FLAG: f"decode={name}", **fields},
        SGLANG_DRAFT_EXT_BACKENDS="torch_native,accel=provider:BACKEND",
    )
    if said:
        assert said in refused(result)
    else:
        assert given(result)[0].endswith(name)


def test_a_release_without_draft_windows_in_decode_is_not_asked_for_them(release):
    result = launch(
        release, {FLAG: "decode=torch_native", **WINDOW}, SGLANG_DRAFT_EXT_BACKENDS="torch_native"
    )
    assert given(result)[0].endswith("decode=torch_native")


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_target_that_cannot_verify_is_refused(release, mode):
    other = "decode" if mode == "prefill" else "prefill"
    fields = {f"{mode}_attention_backend": "no_verify", "speculative_attention_mode": mode, FLAG: "triton"}
    line = refused(launch(release, fields, **AUTO))
    assert "'no_verify' cannot be the target's backend in speculative decoding" in line
    assert given(launch(release, {**fields, "speculative_algorithm": None}, **AUTO))[0] == "triton"
    fields = {f"{other}_attention_backend": "no_verify", "speculative_attention_mode": mode, FLAG: "triton"}
    assert given(launch(release, fields, **AUTO))[0] == "triton", "it does not verify"


def test_a_model_hooks_default_is_not_an_inherited_backend(release):
    """Stock's own default for a model is neither asked for here nor replaced."""
    path = release / "sglang/srt/server_args.py"
    path.write_text(
        path.read_text().replace(
            "def resolve_once(self):",
            f"def resolve_once(self):\n        self.{FLAG} = self.{FLAG} or 'triton'",
        )
    )
    assert given(launch(release, {"attention_backend": "wave"}, **AUTO)) == ["triton", "None"]
