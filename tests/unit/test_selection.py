import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_draft_ext.errors import DraftExtError, SelectionError
from sglang_draft_ext.launch import asked, flag_value, uniform
from sglang_draft_ext.selection import ROLES, Selection, check, complete, parse

pytestmark = pytest.mark.unit

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,12}", fullmatch=True)


def test_one_name_is_for_all_roles():
    assert parse(" fa3 ") == {"prefill": "fa3", "extend": "fa3", "decode": "fa3"}


def test_roles_in_any_order_and_white_space():
    assert parse("decode = flashinfer , prefill=fa3") == {"decode": "flashinfer", "prefill": "fa3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no backend name"),
        ("prefill=", "no backend name"),
        ("=fa3", "'' is not a role"),
        ("verify=fa3", "'verify' is not a role"),
        ("prefill=fa3,prefill=fa4", "given twice"),
        ("prefill=fa3,", "'' is not a role"),
        ("fa3,fa4", "'fa3' is not a role"),
        ("prefill=fa3=fa4", "is not a backend name"),
        ("PREFILL=fa3", "'PREFILL' is not a role"),
    ],
)
def test_malformed_selections_are_refused(text, said):
    with pytest.raises(SelectionError, match=said):
        parse(text)


@given(st.text(max_size=40))
def test_anything_is_a_selection_or_an_error_of_ours(text):
    try:
        roles = parse(text)
    except DraftExtError:
        return
    assert set(roles) <= set(ROLES)


@given(names, names, names)
def test_what_travels_says_the_same_again(prefill, extend, decode):
    chosen = Selection(prefill=prefill, extend=extend, decode=decode)
    assert parse(str(chosen)) == {"prefill": prefill, "extend": extend, "decode": decode}


@pytest.mark.parametrize(
    ("roles", "mode", "expected"),
    [
        ({}, "prefill", "prefill=P,extend=P,decode=D"),
        ({}, "decode", "prefill=P,extend=D,decode=D"),
        ({"prefill": "a"}, "prefill", "prefill=a,extend=a,decode=D"),
        ({"prefill": "a"}, "decode", "prefill=a,extend=D,decode=D"),
        ({"decode": "b"}, "decode", "prefill=P,extend=b,decode=b"),
        ({"extend": "e"}, "decode", "prefill=P,extend=e,decode=D"),
        ({"prefill": "D", "extend": "D"}, "prefill", "D"),
    ],
)
def test_defaults_follow_stock(roles, mode, expected):
    assert str(complete(roles, prefill="P", decode="D", attention_mode=mode)) == expected


@pytest.mark.parametrize(
    ("flag", "roles", "expected"),
    [
        (None, {}, None),
        ("fa3", {}, "fa3"),
        ("fa3", {"decode": "fa4"}, "prefill=fa3,extend=fa3,decode=fa4"),
        (None, {"decode": "fa4"}, "decode=fa4"),
        ("prefill=a,decode=b", {"decode": "c", "extend": None}, "prefill=a,decode=c"),
        ("prefill=a", {"decode": "a", "extend": "a"}, "a"),
    ],
)
def test_role_flags_win_over_the_draft_flag(flag, roles, expected):
    assert flag_value(flag, roles) == expected


def test_the_flag_wins_over_the_variable_per_role(monkeypatch):
    monkeypatch.setenv("SGLANG_DRAFT_EXT_SELECT", "prefill=a,decode=b")
    roles, sources = asked("decode=c")
    assert roles == {"prefill": "a", "decode": "c"}
    assert sources == {
        "prefill": "SGLANG_DRAFT_EXT_SELECT",
        "decode": "--speculative-draft-attention-backend",
    }


def test_uniform():
    assert uniform(dict.fromkeys(ROLES, "x")) == "x"
    assert uniform({"prefill": "x", "decode": "x"}) is None
    assert uniform({}) is None


def test_a_name_that_cannot_is_refused_with_the_nearest_and_the_list():
    with pytest.raises(SelectionError) as refusal:
        check("flashinfr", "decode", ("triton", "flashinfer"), where="a flag")
    assert "did you mean 'flashinfer'" in str(refusal.value)
    assert "choose from flashinfer, triton" in str(refusal.value)
    check("triton", "decode", ("triton",))
