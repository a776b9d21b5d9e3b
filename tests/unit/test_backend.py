import functools
import os.path
import pickle
from dataclasses import FrozenInstanceError

import pytest

from sglang_draft_ext import BackendError, DraftBackend
from sglang_draft_ext.backend import load_reference, reference_of

pytestmark = pytest.mark.unit


def build(runner):
    return runner


class Container:
    @classmethod
    def make(cls, runner, topk, num_steps):
        return cls()


def test_keyword_only_and_frozen():
    backend = DraftBackend(name="accel", attention="vendor:Attention")
    with pytest.raises(FrozenInstanceError):
        backend.name = "other"
    with pytest.raises(TypeError):
        DraftBackend("accel", "vendor:Attention")


def test_references_of_strings_and_importable_callables():
    backend = DraftBackend(name="accel", attention=build, decode=Container)
    assert backend.references == {"attention": f"{__name__}:build", "decode": f"{__name__}:Container"}
    assert DraftBackend(name="accel", attention="stock:wave").references == {"attention": "stock:wave"}
    assert reference_of(os.path.join) == "posixpath:join"


def local():
    def inner(runner):
        return runner

    return inner


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (lambda runner: runner, "it is a lambda"),
        (local(), "it is defined inside a function"),
        (functools.partial(build), "it has no module and name of its own"),
        (Container().make, "is another object"),
        ("no reference", "is not a reference"),
        ("stock:", "is not a reference"),
        (3, "is neither a reference nor callable"),
    ],
)
@pytest.mark.parametrize("role", ["attention", "decode"])
def test_what_children_cannot_repeat_is_refused_at_once(factory, reason, role):
    with pytest.raises(BackendError, match="DraftBackend\\(name='accel'\\), " + role) as refusal:
        DraftBackend(**{"name": "accel", "attention": build, role: factory})
    assert reason in str(refusal.value)


def test_a_callable_of_the_main_script_is_refused():
    code = build.__code__
    function = type(build)(code, {"__name__": "__main__"}, "build")
    function.__module__ = "__main__"
    with pytest.raises(BackendError, match="the main script"):
        DraftBackend(name="accel", attention=function)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "is not a backend name"),
        ({"name": "a,b"}, "is not a backend name"),
        ({"name": 3}, "is not a backend name"),
        ({"mla": "yes"}, "mla='yes' is unknown"),
        ({"page_sizes": ()}, "page_sizes"),
        ({"page_sizes": (0,)}, "page_sizes"),
        ({"page_sizes": (True,)}, "page_sizes"),
        ({"page_sizes": 64}, "page_sizes"),
        ({"page_sizes": "64"}, "page_sizes"),
        ({"decode": "stock:triton"}, "is no multi-step backend"),
        ({"max_topk": 0}, "max_topk"),
        ({"max_head_dim": 0}, "max_head_dim"),
        ({"extend_graph": "yes"}, "extend_graph"),
        ({"max_topk": "4"}, "max_topk"),
    ],
)
def test_malformed_fields_are_refused(fields, said):
    with pytest.raises(BackendError, match=said):
        DraftBackend(**{"name": "accel", "attention": "vendor:Attention", **fields})


def test_page_sizes_become_a_sorted_tuple():
    assert DraftBackend(name="a", attention="m:a", page_sizes=[64, 16]).page_sizes == (16, 64)


def test_references_that_do_not_import_keep_the_original_error(tmp_path, monkeypatch):
    (tmp_path / "broken_provider.py").write_text("import does_not_exist_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendError, match="No module named 'does_not_exist_anywhere'") as refusal:
        load_reference("broken_provider:attr", where="here")
    assert isinstance(refusal.value.__cause__, ModuleNotFoundError)
    with pytest.raises(BackendError, match=r"os\.path has no attribute 'nope'"):
        load_reference("os:path.nope", where="here")


def test_errors_survive_the_way_between_processes():
    with pytest.raises(BackendError) as refusal:
        load_reference("os:nope", where="here")
    again = pickle.loads(pickle.dumps(refusal.value))
    assert type(again) is BackendError
    assert str(again) == str(refusal.value)
    assert (again.where, again.remedy) == ("here", "correct the reference")
