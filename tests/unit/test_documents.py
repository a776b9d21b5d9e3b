"""README and docs: what a reader can run works, and what they list is complete."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import DOCUMENTS, Block, blocks, launches
from environments import PACKAGE, ROOT
from unit.fake_release import python, write

import sglang_draft_ext
from sglang_draft_ext import errors, registry
from sglang_draft_ext.points import POINTS
from sglang_draft_ext.settings import KNOWN, PREFIX

pytestmark = pytest.mark.unit

BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
MAIN = "import sys; from sglang_draft_ext.cli import main; sys.exit(main(sys.argv[1:]))"


def of(*languages: str) -> list[pytest.param]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language in languages]


def test_every_block_is_of_a_kind_that_is_tested():
    assert {block.language for block in BLOCKS} <= {"", "sh", "python", "toml", "mermaid", "text"}


@pytest.mark.parametrize("block", of("python"))
def test_python_runs(block: Block, tmp_path: Path):
    write(tmp_path)
    done = python(tmp_path, block.text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of("toml"))
def test_toml_is_toml(block: Block):
    tomllib = pytest.importorskip("tomllib", reason="tomllib came with Python 3.11")
    points = tomllib.loads(block.text)["project"]["entry-points"]
    assert {*points} == {registry.ENTRY_POINTS}


# Commands that install, and those that take minutes: what is looked at instead, and for what.
RUN_ELSEWHERE = {
    "pip install .": ("tests/lifecycle/test_pythons.py", 'pip("install", "--no-deps"'),
    "scripts/demo": ("scripts/demo", "Watch stock SGLang serve with a draft backend"),
    "scripts/test": (".ci/run", "exec scripts/test"),
}


@pytest.mark.parametrize("block", of("sh"))
def test_commands_are_known(block: Block, tmp_path: Path):
    """Ours are run here on the fake release; launch lines go to `explain`, on a real release, in the contract tests."""
    write(tmp_path)
    for line in block.commands:
        words = shlex.split(line)
        if words[0] == "export" or "sglang.launch_server" in words[:3]:
            continue
        if words[0] == "sglang-draft-ext":
            code = f"import sys; sys.argv = {words!r}\n{MAIN}"
            done = python(tmp_path, code)
            # The doctor's own problem here is that a checkout on PYTHONPATH is not an installation.
            assert done.returncode in (0, 1), done.stderr
            assert done.stdout
            continue
        place, said = RUN_ELSEWHERE[line]
        assert said in (ROOT / place).read_text()


def test_the_first_launch_line_is_the_one_that_tests_serve():
    """Backend, flag and variable are those of tests/e2e/test_extra_draft_backend.py."""
    tested = (ROOT / "tests" / "e2e" / "test_extra_draft_backend.py").read_text()
    first, second = [*launches(ROOT / "README.md")][:2]
    assert first.flags == second.flags
    assert first.variables == {}
    assert [*second.variables.items()] == [("SGLANG_DRAFT_EXT_BACKENDS", "torch_native")]
    assert '"torch_native": [' in tested
    assert 'env={"SGLANG_DRAFT_EXT_BACKENDS": name}' in tested
    assert second.flags[-2:] == ["--speculative-draft-attention-backend", "torch_native"]
    assert "*speculative(topk, draft)" in tested


def test_the_error_that_stock_gives_is_the_one_that_tests_see():
    refusals = (ROOT / "tests" / "e2e" / "test_refusals.py").read_text()
    (quoted,) = re.findall(r"^ValueError: .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert f'"{quoted}"' in refusals


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), target


def test_every_variable_is_in_the_readme_and_no_other():
    readme = (ROOT / "README.md").read_text()
    assert all(f"| `{name}` |" in readme for name in KNOWN)
    for document in DOCUMENTS:
        named = set(re.findall(rf"{PREFIX}[A-Z_]+", document.read_text()))
        assert named <= {*KNOWN}, document.name


def test_every_public_name_is_under_the_compatibility_policy():
    text = (ROOT / "docs" / "compatibility.md").read_text()
    assert all(f"`{name}`" in text for name in sglang_draft_ext.__all__)


def test_every_hook_that_is_named_exists():
    for document in DOCUMENTS:
        for name in re.findall(r"DISABLE=([a-z][a-z'-]+)", document.read_text()):
            assert name in {point.slug for point in POINTS}


# Messages

OURS = {name for name in vars(errors) if name.endswith("Error")} | {"ImportError"}


def templates(node: ast.expr) -> list[str]:
    """The message that an expression makes, with "…" for what differs; several, if it chooses between some."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        constants = {"PREFIX": PREFIX, "DISABLE": f"{PREFIX}DISABLE"}
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else constants.get(ast.unparse(part.value), "…")
            for part in node.values
        ]
        return [re.sub(r"…(: …)?\)", "…)", "".join(parts))]
    if isinstance(node, ast.IfExp):
        return [*templates(node.body), *templates(node.orelse)]
    if isinstance(node, ast.BinOp):  # what is added is a hint
        return templates(node.left)
    raise AssertionError(f"no message in words: {ast.unparse(node)}")


def raised() -> Iterator[tuple[str, str]]:
    """Class and message of every error that the package makes."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                not isinstance(node, ast.Call)
                or not isinstance(node.func, ast.Name)
                or node.func.id not in OURS
            ):
                continue
            for message in templates(node.args[0]):
                yield node.func.id, message


def catalogued() -> Iterator[tuple[str, str]]:
    name = ""
    for line in (ROOT / "docs" / "messages.md").read_text().splitlines():
        if line.startswith("## "):
            name = line[3:].partition(":")[0]
            name = "ImportError" if name == "A damaged installation" else name
        elif match := re.match(r"\| `(.+?)` \| ", line):
            yield name, match[1]


def test_the_catalogue_of_messages_is_complete_and_says_nothing_else():
    assert {*raised()} - {*catalogued()} == set(), "not in docs/messages.md"
    assert {*catalogued()} - {*raised()} == set(), "no longer raised"


def test_every_message_has_a_remedy():
    for line in (ROOT / "docs" / "messages.md").read_text().splitlines():
        if line.startswith("| `"):
            assert line.rstrip("| ").rpartition("|")[2].strip(), line


# Findings


def findings() -> Iterator[str]:
    """The names of all that the doctor can find."""
    for file in (PACKAGE / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "_problem"):
                first = node.args[0] if node.args else next(k.value for k in node.keywords if k.arg == "name")
                while isinstance(first, ast.IfExp):
                    yield str(ast.literal_eval(first.orelse))
                    first = first.body
                if isinstance(first, ast.Constant):
                    yield first.value


def test_every_finding_is_explained_and_tested():
    named = {*findings()}
    assert len(named) >= 20
    text = (ROOT / "docs" / "diagnostics.md").read_text()
    assert {*re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)} == named
    tests = (ROOT / "tests" / "unit" / "test_doctor.py").read_text()
    assert {name for name in named if f'"{name}"' not in tests} == set()
