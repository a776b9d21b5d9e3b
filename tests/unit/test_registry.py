import importlib.metadata
from types import SimpleNamespace

import pytest

from sglang_draft_ext import BackendError, DraftBackend, LateRegistrationError, RegistrationError
from sglang_draft_ext.registry import ENTRY_POINTS, Entry, Registry, StockNames
from sglang_draft_ext.settings import parse_backends

pytestmark = pytest.mark.unit

STOCK = StockNames(
    general=("triton", "torch_native", "wave"), draft=("triton", "fa3"), refused={"hpc_ops": "no"}
)
ACCEL = DraftBackend(name="accel", attention="vendor:Attention")
NOT_A_BACKEND = 7


def asked(text):
    registry = Registry()
    for request in parse_backends(text):
        registry.ask(request)
    return registry


def resolved(text, name=None):
    registry = asked(text)
    registry.check_names(STOCK)
    return registry.resolve(name or registry.names[0], STOCK)


@pytest.fixture
def providers(monkeypatch):
    """Pretend that distributions with these entry points are installed: provide(name, value, distribution)."""
    installed = []

    def entry_points(*, group):
        assert group == ENTRY_POINTS
        return installed

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)

    def provide(name, value, distribution="vendor-sglang"):
        installed.append(SimpleNamespace(name=name, value=value, dist=SimpleNamespace(name=distribution)))

    return provide


def test_register_and_resolve():
    registry = Registry()
    registry.register(ACCEL, where="here")
    assert registry.names == ("accel",)
    assert registry.resolve("accel", STOCK) is ACCEL


def test_a_stock_general_backend_is_asked_for_by_name():
    assert resolved("torch_native") == DraftBackend(name="torch_native", attention="stock:torch_native")


def test_an_entry_point_wins_over_stock_and_gives_a_declaration(providers):
    providers("accel", f"{__name__}:ACCEL")
    assert resolved("accel") is ACCEL


def test_a_reference_to_a_callable_is_its_attention_factory():
    assert resolved("mine=os.path:join") == DraftBackend(name="mine", attention="os.path:join")


@pytest.mark.parametrize("name", ["triton", "fa3"])
def test_stock_draft_backends_are_never_replaced(name):
    with pytest.raises(RegistrationError, match="is a draft backend of this SGLang release itself"):
        resolved(f"{name}=os.path:join")
    with pytest.raises(RegistrationError, match="is a draft backend of this SGLang release itself"):
        resolved(name)


def test_stock_general_backends_are_never_replaced():
    with pytest.raises(RegistrationError, match="is a general backend of this SGLang release itself"):
        resolved("wave=os.path:join")


def test_a_stock_general_backend_may_get_a_container_of_its_own():
    registry = Registry()
    registry.register(DraftBackend(name="wave", attention="stock:wave", decode="vendor:Steps"), where="here")
    assert registry.resolve("wave", STOCK).decode == "vendor:Steps"


def test_unknown_names_are_refused_with_the_nearest_and_the_full_list(providers):
    providers("accel", "vendor:BACKEND")
    with pytest.raises(RegistrationError) as refusal:
        resolved("torch_natve")
    assert "did you mean 'torch_native'?" in str(refusal.value)
    assert "accel, torch_native, wave" in str(refusal.value)


def test_two_providers_of_one_name_are_refused(providers):
    providers("accel", "one:BACKEND", "first")
    providers("accel", "two:BACKEND", "second")
    with pytest.raises(RegistrationError, match="one:BACKEND of first, two:BACKEND of second"):
        resolved("accel")


def test_one_distribution_seen_twice_on_the_path_is_one_provider(providers):
    providers("accel", f"{__name__}:ACCEL")
    providers("accel", f"{__name__}:ACCEL")
    assert resolved("accel") is ACCEL


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (f"{__name__}:NOT_A_BACKEND", "an object of type int"),
        (f"{__name__}:ACCEL", "its name is 'accel'"),
        ("no_such_module:x", "No module named 'no_such_module'"),
        ("os:no_such_attribute", "os has no attribute"),
    ],
)
def test_references_to_something_else_are_refused(reference, said):
    with pytest.raises(BackendError, match=said):
        resolved(f"mine={reference}")


@pytest.mark.parametrize("thing", ["accel", None, DraftBackend, 3])
def test_register_takes_declarations_only(thing):
    registry = Registry()
    with pytest.raises(BackendError, match="is not a DraftBackend"):
        registry.register(thing, where="here")
    assert registry.names == ()


def test_a_name_is_registered_once():
    registry = asked("accel=vendor:Attention")
    with pytest.raises(RegistrationError, match="registered twice"):
        registry.register(ACCEL, where="here")


def test_a_late_registration_says_where_the_window_closed():
    registry = Registry()
    registry.close("serve.py:3")
    registry.close("serve.py:9")
    with pytest.raises(LateRegistrationError) as refusal:
        registry.register(ACCEL, where="late.py:5")
    assert "serve.py:3" in str(refusal.value)
    assert "late.py:5" in str(refusal.value)
    assert registry.names == ()


def test_a_registration_that_the_release_refuses_is_undone():
    registry = Registry()

    def refuse():
        raise RegistrationError("no")

    registry.on_register = refuse
    with pytest.raises(RegistrationError):
        registry.register(ACCEL, where="here")
    assert registry.names == ()


def test_a_child_inherits_what_it_does_not_have():
    registry = asked("wave")
    registry.inherit(Entry(backend=DraftBackend(name="wave", attention="stock:wave"), where="parent"))
    registry.inherit(Entry(backend=ACCEL, where="parent"))
    assert registry.names == ("wave", "accel")
    assert registry.where("wave").startswith("SGLANG_DRAFT_EXT_BACKENDS")
    assert registry.where("accel") == "parent"


def test_what_cannot_draft_is_refused_with_the_reason():
    with pytest.raises(RegistrationError, match="'hpc_ops' cannot draft: no"):
        asked("hpc_ops").check_names(STOCK)
    with pytest.raises(RegistrationError, match="Nobody provides") as refusal:
        asked("hpc_op").check_names(STOCK)
    assert "hpc_ops" not in str(refusal.value), "it is not offered either"
