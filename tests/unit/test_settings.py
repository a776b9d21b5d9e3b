import pytest

from sglang_draft_ext.errors import SettingsError
from sglang_draft_ext.settings import BACKENDS, STRICT, BackendRequest, Settings, parse_backends

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["", " ", ",", " , ,\t,"])
def test_nothing_is_asked_for(text):
    assert parse_backends(text) == ()


def test_names_references_white_space_and_empty_items():
    requests = parse_backends(" torch_native ,, my-accel = vendor.sglang:Backend.build ,wave,")
    assert [(request.name, request.reference) for request in requests] == [
        ("torch_native", None),
        ("my-accel", "vendor.sglang:Backend.build"),
        ("wave", None),
    ]
    assert requests[1].where == f"{BACKENDS}, item 3 ('my-accel = vendor.sglang:Backend.build')"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1st", "is not a backend name"),
        ("two words", "is not a backend name"),
        ("=mod:attr", "is not a backend name"),
        ("../x", "is not a backend name"),
        ("mod:attr", "is not a backend name"),
        ("x=", "is not a reference"),
        ("x=mod", "is not a reference"),
        ("x=mod:", "is not a reference"),
        ("x=:attr", "is not a reference"),
        ("x=/tmp/mod.py:attr", "is not a reference"),
        ("x=mod:attr()", "is not a reference"),
        ("x=a=b:c", "is not a reference"),
        ("x,y,x", "is named twice"),
        ("x,x=mod:attr", "is named twice"),
    ],
)
def test_malformed_items_are_refused_with_their_place(text, said):
    with pytest.raises(SettingsError) as refusal:
        parse_backends(text)
    assert said in str(refusal.value)
    assert f"Asked in: {BACKENDS}, item" in str(refusal.value)
    assert "SGLANG_DRAFT_EXT_DISABLE=1" in str(refusal.value)


def test_unknown_variables_under_the_prefix_are_reported():
    environ = {"SGLANG_DRAFT_EXT_BACKEND": "x", "SGLANG_DRAFT_EXT_BACKENDS": "wave", "SGLANG_OTHER": "y"}
    settings = Settings.from_environment(environ)
    assert settings.unknown == ("SGLANG_DRAFT_EXT_BACKEND",)
    assert settings.backends == (
        BackendRequest(name="wave", reference=None, where="SGLANG_DRAFT_EXT_BACKENDS, item 1 ('wave')"),
    )


@pytest.mark.parametrize(
    ("text", "strict"), [("", False), ("0", False), ("False", False), ("1", True), (" true ", True)]
)
def test_strict_is_yes_or_no(text, strict):
    assert Settings.from_environment({STRICT: text}).strict is strict


def test_strict_is_nothing_else():
    with pytest.raises(SettingsError, match="neither yes nor no") as refusal:
        Settings.from_environment({STRICT: "maybe"})
    assert f"Asked in: {STRICT}" in str(refusal.value)
