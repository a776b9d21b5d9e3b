"""What the variables may say: any text is a value or an error of ours, and no text reaches more than an import by name."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from environments import PACKAGE, ROOT, clean_environ
from hypothesis import given
from hypothesis import strategies as st

from sglang_draft_ext.errors import SettingsError
from sglang_draft_ext.settings import NAME, REFERENCE, parse_backends

TOKENS = st.sampled_from(
    [*"=,:.-_/ \n\0é٣", "..", "a", "wave", "module:attr", "name=package.module:attribute"]
)
TEXTS = st.text(max_size=40) | st.lists(TOKENS, max_size=12).map("".join)
# None of these may be more than a text that is refused.
ATTACKS = [
    "x=os:system('id')",
    "x=__import__('os'):system",
    "x=os;print:f",
    "x=os:system|id",
    "x=/tmp/evil.py:f",
    "x=../evil:f",
    "x=..evil:f",
    "x=evil/__init__:f",
    "x=evil.py\0:f",
    "x=file:///tmp/evil:f",
    "x=http://host/evil:f",
    "x=evil:f\nimport os",
    "../evil",
    "/tmp/evil.py",
    "evil.py\0",
    "$(id)",
    "%(x)s {x}",
]


@given(TEXTS)
def test_any_text_is_requests_or_an_error_of_ours(text: str) -> None:
    try:
        requests = parse_backends(text)
    except SettingsError:
        return
    for request in requests:
        assert NAME.fullmatch(request.name)
        assert request.reference is None or REFERENCE.fullmatch(request.reference)


@pytest.mark.parametrize("text", ATTACKS)
def test_a_text_that_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_backends(text)


def test_a_reference_imports_its_module_and_nothing_else(tmp_path: Path) -> None:
    """Watched by an audit hook: which modules are asked for, which files are opened, what is compiled or executed."""
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "__init__.py").touch()
    (tmp_path / "vendor" / "module.py").write_text("def attribute(runner): ...\n")
    (tmp_path / "name.py").write_text("raise SystemExit('a name is not a module')\n")
    code = """
import json, sys
from sglang_draft_ext.registry import Registry, StockNames
from sglang_draft_ext.settings import parse_backends
import importlib.metadata
registry, stock = Registry(), StockNames(general=("wave",), draft=(), refused={})
requests = parse_backends("name=vendor.module:attribute,wave")
list(importlib.metadata.entry_points(group="warm up"))
seen = []
watched = ("exec", "compile", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
def look(event, args):
    if event in watched:
        seen.append((event, getattr(args[0], "co_filename", None) or str(args[-1])))
sys.addaudithook(look)
for request in requests:
    registry.ask(request)
    registry.resolve(request.name, stock)
print(json.dumps(seen))
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        check=True,
        cwd=tmp_path,
        env=clean_environ(PYTHONPATH=f"{ROOT}:{tmp_path}"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    events = json.loads(done.stdout)
    assert {event for event, _ in events} == {"exec", "compile"}
    files = {file for _, file in events}
    assert {str(tmp_path / "vendor" / name) for name in ("__init__.py", "module.py")} <= files
    # Code comes out of the files of modules, never of a string; and a name is not a module.
    assert all(Path(file).is_file() for file in files), files
    assert str(tmp_path / "name.py") not in files


FORBIDDEN = {"exec", "eval", "compile", "__import__", "open", "execfile", "breakpoint", "input"}
MODULES = {"runpy", "subprocess", "ctypes", "marshal", "shelve", "socket", "urllib", "http"}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_module_can_do_more(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & FORBIDDEN
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
    }
    assert not imported & MODULES
