"""Every cell of the catalogue, asked of the release's own factory; creators stand in where they would need their device."""

import importlib
import inspect
import json
from dataclasses import asdict

import pytest
import sglang.srt.server_args as stock_arguments
from contract.release import PAIRS, SURFACE, Factory, era, map_names, select, server_args
from environments import ROOT
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from sglang_draft_ext import backports, catalogue, hooks, launch, multistep, points
from sglang_draft_ext.errors import RegistrationError, SelectionError
from sglang_draft_ext.extend import DraftExtendBackend
from sglang_draft_ext.registry import Registry, registry
from sglang_draft_ext.releases import TESTED
from sglang_draft_ext.settings import parse_backends

pytestmark = pytest.mark.contract

ROWS = catalogue.of(SURFACE)
CELLS = [(row, role) for row in ROWS for role in ("extend", "decode")]


@pytest.fixture(autouse=True, scope="module")
def selecting():
    hooks.activation.select("the contract tests")


@pytest.fixture
def asked_for(monkeypatch):
    """Ask for a name as if the environment had from the beginning."""

    def ask(name):
        (request,) = parse_backends(name)
        monkeypatch.setattr(registry, "_requests", {**registry._requests, name: request})
        monkeypatch.setattr(registry, "_entries", {**registry._entries})

    return ask


def made(monkeypatch, role, *, steps=3, marked=True, **arguments):
    """What the release's factory makes for *role*, with creators that say which they are."""
    factory = Factory(monkeypatch, server_args(**arguments), steps=steps)
    if marked:
        factory.mark_creators()
    return factory.decode() if role == "decode" else factory.extend()


def chosen(row, role):
    name = catalogue.current_name(SURFACE, row.name)
    return select("triton", "triton", name) if role == "decode" else select(name, name, "triton")


def test_it_is_what_the_documentation_says():
    kept = json.loads((ROOT / "scripts" / "catalogue.json").read_text())
    rows = {}
    for release in TESTED[: TESTED.index(SURFACE.version) + 1]:
        rows.update(kept.get(release, {}))
    here = {row.name: json.loads(json.dumps(asdict(row))) for row in ROWS}
    assert here == {name: {"name": name, **row} for name, row in rows.items() if row}


def test_it_holds_every_name_of_the_release():
    names = {row.name for row in ROWS}
    assert {*map_names("decode"), *map_names("extend")} <= names
    assert {*stock_arguments.ATTENTION_BACKEND_CHOICES} <= names | {"contract"}
    if era("general registry") == "a registry":
        live = importlib.import_module(points.ATTENTION_REGISTRY).ATTENTION_BACKENDS
        assert {*live} - {"contract"} == {*catalogue.builders(SURFACE)}


@pytest.mark.parametrize(
    ("row", "role"), CELLS, ids=[f"{row.name}-{role}-{row[role].state}" for row, role in CELLS]
)
def test_every_cell(monkeypatch, asked_for, row, role):
    check = {"native": is_native, "backported": is_backported, "multistep": is_made, "refused": is_refused}
    check[row[role].state](monkeypatch, asked_for, row, role)


def is_native(monkeypatch, _asked_for, row, role):
    launch.check_names({role: row.name}, {role: "here"}, "EAGLE")
    if row.name == "qsa":
        method = (
            "_create_qwen_qsa_decode_backend" if role == "decode" else "_create_qwen_qsa_draft_extend_backend"
        )
        factory = Factory(monkeypatch, server_args(selection=chosen(row, role)))
        factory.made.qsa_profile = object()
        monkeypatch.setattr(factory.made, method, lambda: "stock's", raising=False)
        assert (factory.decode() if role == "decode" else factory.extend()) == "stock's"
        return
    name = catalogue.current_name(SURFACE, row.name)
    alone = made(monkeypatch, role, draft=name, target=(name, name))
    assert made(monkeypatch, role, selection=chosen(row, role)).creator == alone.creator


def is_backported(monkeypatch, _asked_for, row, role):
    launch.check_names({role: row.name}, {role: "here"}, "EAGLE")
    if row.name == "flashmla":
        built = made(monkeypatch, role, selection=chosen(row, role))
        assert built is None, "so stock leaves draft extend to the draft runner's own backend"
        return
    constructed = flash_attention(monkeypatch)
    built = made(monkeypatch, role, selection=chosen(row, role))
    assert type(built).__name__ == (
        "FlashAttentionMultiStepBackend" if role == "decode" else "FlashAttentionBackend"
    )
    assert constructed[-1][1]["fa_impl_ver"] == 4


def flash_attention(monkeypatch):
    """What is constructed of FlashAttention's classes, and with what, in order; the backend itself would need a GPU.

    The arguments are bound to the release's own signatures: one that a constructor does not take is a TypeError.
    """
    constructed = []
    module = importlib.import_module(catalogue.FLASH_ATTENTION)

    def record(kind, then):
        signature = inspect.signature(kind.__init__)

        def init(self, *args, **kwargs):
            _self, *given = signature.bind(self, *args, **kwargs).arguments.items()
            constructed.append((kind.__name__, dict(given)))
            then(self, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", init)

    container = module.FlashAttentionMultiStepBackend
    record(container, then=container.__init__)
    record(module.FlashAttentionBackend, then=lambda *_, **__: None)
    return constructed


class Recorded(AttentionBackend):
    """Stands for a backend of the release that needs its device."""

    def __init__(self, given):
        self.given = given

    def init_forward_metadata(self, forward_batch):
        raise AssertionError("not asked for here")


def is_made(monkeypatch, asked_for, row, role):
    if row.name not in registry:
        with pytest.raises(SelectionError, match=f"SGLANG_DRAFT_EXT_BACKENDS={row.name} adds it"):
            launch.check_names({role: row.name}, {role: "here"}, "EAGLE")
        asked_for(row.name)
    launch.check_names({role: row.name}, {role: "here"}, "EAGLE")
    factory = Factory(monkeypatch, server_args(selection=chosen(row, role)))
    if era("general registry") == "a registry":
        known = importlib.import_module(points.ATTENTION_REGISTRY).ATTENTION_BACKENDS
        monkeypatch.setitem(known, row.name, Recorded)
    else:
        factory.runner._get_attention_backend_from_str = lambda name: Recorded((name, factory.runner))
    monkeypatch.setattr(multistep, "MultiStepDraftBackend", MadeHere)
    built = factory.decode() if role == "decode" else factory.extend()
    if role == "decode":
        assert type(built) is MadeHere
        (built,) = built.attn_backends
    else:
        assert isinstance(built, DraftExtendBackend)
    runner = built.given if era("general registry") == "a registry" else built.given[1]
    assert isinstance(built, Recorded)
    assert runner is factory.runner


class MadeHere:
    """Stands for this package's multi-step draft decode, which has tests of its own."""

    def __init__(self, runner, topk, num_steps, *, attention):
        self.attn_backends = [attention(runner)]

    def init_forward_metadata(self, forward_batch):
        raise NotImplementedError


def is_refused(_monkeypatch, _asked_for, row, role):
    why = row[role].why
    assert why
    with pytest.raises(SelectionError, match=why):
        launch.check_names({role: row.name}, {role: "here"}, "EAGLE")
    if row.extend.state == row.decode.state == "refused":
        alone = Registry()
        (request,) = parse_backends(row.name)
        alone.ask(request)
        with pytest.raises(RegistrationError, match=row.decode.why):
            alone.check_names(catalogue.stock_names(SURFACE))


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_every_prefill(row):
    if row.prefill.state == "refused":
        with pytest.raises(SelectionError, match=row.prefill.why):
            launch.check_names({"prefill": row.name}, {"prefill": "here"}, "EAGLE")
    else:
        launch.check_names({"prefill": row.name}, {"prefill": "here"}, "EAGLE")
        assert catalogue.current_name(SURFACE, row.name) in catalogue.builders(SURFACE)


@pytest.mark.parametrize("topk", [1, 2])
def test_flash_attention_4_is_given_to_every_step(monkeypatch, topk):
    if "fa4" not in catalogue.backported(SURFACE, "decode"):
        pytest.skip("fa4: its decode is not backported in this release")
    constructed, runner = flash_attention(monkeypatch), object()
    built = backports.flash_attention_4_decode(runner, topk, 4)
    steps = len(built.attn_backends)
    asked = {"model_runner": runner, "topk": topk, "speculative_num_steps": 4}
    (container, *replaced), told = constructed[:-steps], constructed[-steps:]
    assert container == ("FlashAttentionMultiStepBackend", asked)
    assert told == [
        ("FlashAttentionBackend", {**asked, "speculative_step_id": step, "fa_impl_ver": 4})
        for step in range(steps)
    ]
    assert steps == len(replaced) > 0, "as many as stock's own constructor makes"
    assert {type(step).__name__ for step in built.attn_backends} == {"FlashAttentionBackend"}


def test_flash_attention_4_is_given_to_draft_extend(monkeypatch):
    if "fa4" not in catalogue.backported(SURFACE, "extend"):
        pytest.skip("fa4: its draft extend is not backported in this release")
    constructed, runner = flash_attention(monkeypatch), object()
    backports.flash_attention_4_extend(runner)
    assert constructed == [
        ("FlashAttentionBackend", {"model_runner": runner, "skip_prefill": False, "fa_impl_ver": 4})
    ]


@pytest.mark.parametrize("name", ["contract", "triton"])
def test_too_few_steps_build_nothing(monkeypatch, name):
    if era("draft maps") == "methods of EAGLEWorker":
        pytest.skip("one step: this release builds its backend")
    assert made(monkeypatch, "decode", steps=1, selection=select("triton", "triton", name)) is None


def test_a_draft_with_convolutions_is_refused(monkeypatch):
    if SURFACE.get(points.DRAFT_UTILS, "_assert_draft_needs_no_conv_sidecar") is None:
        pytest.skip("convolutions: this release has no such draft")
    from sglang.srt.configs.inkling import InklingModelConfig

    factory = Factory(monkeypatch, server_args(selection=select("triton", "triton", "contract")))
    factory.runner.model_config.hf_config = object.__new__(InklingModelConfig)
    with pytest.raises(NotImplementedError, match="enable-multi-layer-eagle"):
        factory.decode()


def test_what_stock_puts_around_its_backends_is_put_around_ours(monkeypatch):
    if not SURFACE.source(points.ATTENTION_REGISTRY):
        pytest.skip("wrappers: this release's runner puts all around its own backends")
    registry_module = importlib.import_module(points.ATTENTION_REGISTRY)
    wrappers = [f"attn_backend_wrapper_for_draft_{role}" for role in ("extend", "decode")]
    wrappers = [name for name in wrappers if hasattr(registry_module, name)]
    if not wrappers:
        pytest.skip("wrappers: this release has none")
    seen = []
    for name in wrappers:
        monkeypatch.setattr(registry_module, name, lambda _runner, backend: seen.append(backend) or backend)
    factory = Factory(monkeypatch, server_args(selection=select("contract", "contract", "contract")))
    made_now = [factory.extend(), factory.decode()]
    assert seen == made_now[: len(wrappers)]
    if PAIRS:
        for backend in (*made_now, *made_now[1].attn_backends):
            assert backend.prefill_attention_backend_str == backend.decode_attention_backend_str == "contract"
