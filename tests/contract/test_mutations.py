"""The newest release, changed as a future one might be: each change is refused by the name of its hook, where it matters."""

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from contract.release import SURFACE

from sglang_draft_ext import points
from sglang_draft_ext.releases import TESTED
from sglang_draft_ext.surface import Surface

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(
        SURFACE.version != TESTED[-1], reason="the changes are to the newest release's modules"
    ),
]

RELEASE = Path(SURFACE.path[0])
LAUNCHES = list(
    product(((), ("backends",), ("selection",), ("backends", "selection")), (None, "EAGLE", "DFLASH"))
)
Change = Callable[[ast.AST], None]

# Who asks for a point.
ANY = "any"
BACKENDS = "backends"
SELECTION = "selection"
DFLASH = "backends on DFLASH"


def asks(who: str, purposes: tuple[str, ...], algorithm: str | None) -> bool:
    if who == DFLASH:
        return "backends" in purposes and algorithm == "DFLASH"
    return bool(purposes) if who == ANY else who in purposes


# A changed copy


def release_file(folder: Path, module: str) -> Path:
    return folder.joinpath(*module.split(".")[1:]).with_suffix(".py")


def copy(folder: Path, changed: dict[str, str | None]) -> Path:
    """The release under *folder*, all links but the *changed* files; None leaves one out."""
    package = folder / "sglang"
    _link(RELEASE, package, [tuple(release_file(Path(), module).parts) for module in changed])
    for module, text in changed.items():
        if text is not None:
            release_file(package, module).write_text(text)
    return package


def _link(source: Path, target: Path, changed: list[tuple[str, ...]]) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        below = [parts[1:] for parts in changed if parts[0] == entry.name]
        if not below:
            if entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)
        elif () not in below:
            _link(entry, target / entry.name, below)


def text_of(module: str) -> str:
    return release_file(RELEASE, module).read_text()


# The changes


def find(tree: ast.AST, dotted: str) -> ast.AST:
    """The definition, or the assignment, of a name of the module or of a class."""
    node = tree
    for name in dotted.split("."):
        # The first: the newest releases bind a class's name again, to what they make of the class.
        node = next(child for child in node.body if name in _names(child))
    return node


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    return (getattr(node, "name", ""),)


def renamed(node: ast.AST) -> None:
    if isinstance(node, ast.Assign):
        node.targets = [ast.Name("renamed", ast.Store())]
    else:
        node.name = "renamed"


def without(parameter: str) -> Change:
    def change(node: ast.AST) -> None:
        arguments = node.args
        for kind in (arguments.args, arguments.kwonlyargs):
            kind[:] = [argument for argument in kind if argument.arg != parameter]

    return change


def backends_instead_of_pairs(node: ast.AST) -> None:
    for statement in ast.walk(node):
        if isinstance(statement, ast.Return):
            statement.value = statement.value.elts[1]


def tuple_instead_of_list(node: ast.AST) -> None:
    node.value = ast.Tuple(node.value.elts, ast.Load())


def list_instead_of_dict(node: ast.AST) -> None:
    node.value = ast.List([], ast.Load())


FACTORY = "DraftBackendFactory"
MULTI_LAYER_RUNNER = "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner"
CHANGES = [
    (points.SERVER_ARGS, "ServerArgs.resolve_once", renamed, ANY),
    (points.SERVER_ARGS, "ServerArgs.add_cli_args", renamed, ANY),
    (points.SERVER_ARGS, "ServerArgs.from_cli_args", renamed, ANY),
    (points.SERVER_ARGS, "ServerArgs.from_cli_args", without("args"), ANY),
    (points.CHOICES, "ATTENTION_BACKEND_CHOICES", tuple_instead_of_list, BACKENDS),
    (points.CHOICES, "ATTENTION_BACKEND_CHOICES", renamed, BACKENDS),
    (points.ATTENTION_REGISTRY, "ATTENTION_BACKENDS", renamed, BACKENDS),
    (points.ATTENTION_REGISTRY, "ATTENTION_BACKENDS", list_instead_of_dict, BACKENDS),
    (points.DRAFT_UTILS, f"{FACTORY}._create_backend", renamed, ANY),
    (points.DRAFT_UTILS, f"{FACTORY}._create_backend", without("error_template"), ANY),
    (points.DRAFT_UTILS, f"{FACTORY}.create_decode_backend", renamed, ANY),
    (points.DRAFT_UTILS, f"{FACTORY}.create_draft_extend_backend", renamed, ANY),
    (points.DRAFT_UTILS, f"{FACTORY}._create_triton_decode_backend", backends_instead_of_pairs, ANY),
    (points.DRAFT_UTILS, f"{FACTORY}._create_triton_prefill_backend", backends_instead_of_pairs, ANY),
    (points.CHOICES, "add_attention_backend_choices", renamed, ANY),
    (points.CHOICES, "add_draft_attention_backend_choices", renamed, ANY),
    (points.SCHEDULER, "Scheduler.__init__", renamed, ANY),
    (points.SCHEDULER, "Scheduler.__init__", without("server_args"), ANY),
    (points.DETOKENIZER, "DetokenizerManager.__init__", renamed, ANY),
    (points.DATA_PARALLEL, "DataParallelController.__init__", renamed, ANY),
    (points.MULTI_TOKENIZER, "TokenizerWorker.__init__", renamed, ANY),
    (points.MODEL_RUNNER, "ModelRunner.init_torch_distributed", renamed, ANY),
    (points.DECODE_GRAPH, "EAGLEDraftCudaGraphRunner", renamed, ANY),
    (points.DECODE_GRAPH, "EAGLEDraftCudaGraphRunner.__init__", without("eagle_worker"), ANY),
    (points.EXTEND_GRAPH, "EAGLEDraftExtendCudaGraphRunner", renamed, ANY),
    (points.MULTI_LAYER_GRAPH, MULTI_LAYER_RUNNER, renamed, ANY),
    (points.MULTI_LAYER_GRAPH, f"{MULTI_LAYER_RUNNER}.__init__", without("eagle_worker"), ANY),
    (points.BACKEND_SETUP, "resolve_attention_backend_strs", renamed, SELECTION),
    (points.BACKEND_SETUP, "resolve_attention_backend_strs", without("model_runner"), SELECTION),
    (points.HYBRID, "HybridAttnBackend._select_backend", renamed, SELECTION),
    (points.HYBRID, "HybridAttnBackend.__init__", without("decode_backend"), SELECTION),
    (points.CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES", tuple_instead_of_list, DFLASH),
    (points.CHOICES, "DRAFT_ATTENTION_BACKEND_CHOICES", renamed, DFLASH),
    (points.SPECULATIVE_HOOK, points.RESOLVE_DFLASH, renamed, DFLASH),
    (points.SPECULATIVE_HOOK, points.RESOLVE_DFLASH, without("server_args"), DFLASH),
    (points.DRAFT_WORKER_COMMON, "resolve_draft_worker_attention_backend", renamed, DFLASH),
    (points.DRAFT_WORKER_COMMON, "resolve_draft_worker_attention_backend", without("algo_label"), DFLASH),
]

# A module that is somewhere else: the first hook of the point in it speaks for it.
HELPERS = ("add_attention_backend_choices", "add_draft_attention_backend_choices")
MOVES = [
    (points.SERVER_ARGS, {"ServerArgs.resolve_once": ANY, **dict.fromkeys(HELPERS, ANY)}),
    (
        points.CHOICES,
        {
            "ATTENTION_BACKEND_CHOICES": BACKENDS,
            "DRAFT_ATTENTION_BACKEND_CHOICES": DFLASH,
            **dict.fromkeys(HELPERS, ANY),
        },
    ),
    (points.SCHEDULER, {"Scheduler.__init__": ANY}),
    (points.DETOKENIZER, {"DetokenizerManager.__init__": ANY}),
    (points.DATA_PARALLEL, {"DataParallelController.__init__": ANY}),
    (points.MULTI_TOKENIZER, {"TokenizerWorker.__init__": ANY}),
    (points.MODEL_RUNNER, {"ModelRunner.init_torch_distributed": ANY}),
    (points.ATTENTION_REGISTRY, {"ATTENTION_BACKENDS": BACKENDS}),
    (points.DRAFT_UTILS, {f"{FACTORY}._create_backend": ANY}),
    (points.DECODE_GRAPH, {"EAGLEDraftCudaGraphRunner": ANY}),
    (points.EXTEND_GRAPH, {"EAGLEDraftExtendCudaGraphRunner": ANY}),
    (points.MULTI_LAYER_GRAPH, {MULTI_LAYER_RUNNER: ANY}),
    (points.BACKEND_SETUP, {"resolve_attention_backend_strs": SELECTION}),
    (points.HYBRID, {"HybridAttnBackend.__init__": SELECTION}),
    (points.SPECULATIVE_HOOK, {points.RESOLVE_DFLASH: DFLASH}),
    (points.DRAFT_WORKER_COMMON, {"resolve_draft_worker_attention_backend": DFLASH}),
]


def changed(folder: Path, module: str, attribute: str, change: Change) -> Path:
    tree = ast.parse(text_of(module))
    change(find(tree, attribute))
    return copy(folder, {module: ast.unparse(ast.fix_missing_locations(tree))})


def check(package: Path, expected: dict[str, str]) -> None:
    """Every launch that asks for one of the *expected* targets is refused by exactly those; all others are let alone."""
    surface = Surface([str(package)], "9.9.9")
    for purposes, algorithm in LAUNCHES:
        found = [mismatch.target for mismatch in points.verify(surface, purposes, algorithm=algorithm)]
        wanted = [target for target, who in expected.items() if asks(who, purposes, algorithm)]
        assert sorted(found) == sorted(wanted), (purposes, algorithm)


def test_every_needed_hook_is_changed_somewhere():
    needed = {point.name for point in points.POINTS if point.serves and point.era(SURFACE).hooks}
    attributes = {(module, attribute) for module, attribute, _change, _who in CHANGES}
    reached = {
        point.name
        for point in points.POINTS
        if attributes & {(hook.module, hook.attribute) for hook in point.era(SURFACE).hooks}
    }
    assert reached == needed


def test_an_unchanged_copy_is_not_refused(tmp_path):
    check(copy(tmp_path, {points.CHOICES: text_of(points.CHOICES)}), {})


@pytest.mark.parametrize(
    ("module", "attribute", "change", "who"),
    [pytest.param(*case, id=f"{case[1]} {case[2].__qualname__.partition('.')[0]}") for case in CHANGES],
)
def test_a_change_is_refused_by_its_hook(tmp_path, module, attribute, change, who):
    check(changed(tmp_path, module, attribute, change), {f"{module}:{attribute}": who})


@pytest.mark.parametrize(("module", "named"), [pytest.param(*case, id=case[0]) for case in MOVES])
def test_a_module_that_moved_is_refused_by_its_hook(tmp_path, module, named):
    package = copy(tmp_path, {module: None, f"{module}_moved": text_of(module)})
    check(package, {f"{module}:{attribute}": who for attribute, who in named.items()})


# In a process


def launch(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run *code* where `sglang` is the changed copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_DRAFT_EXT_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        check=False,
        env={**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


IMPORT = "import sglang.srt.server_args as stock; print(stock.__file__)"
ASKS = {"SGLANG_DRAFT_EXT_BACKENDS": "torch_native"}


def test_a_launch_of_a_changed_release_ends_with_the_hook_and_the_off_switch(tmp_path):
    changed(tmp_path, points.DRAFT_UTILS, f"{FACTORY}._create_backend", without("error_template"))
    refused = launch(tmp_path, IMPORT, **ASKS)
    assert refused.returncode != 0
    last = refused.stderr.strip().splitlines()[-1]
    assert last.startswith("sglang_draft_ext.errors.HookError: SGLang ")
    assert f"draft maps ({points.DRAFT_UTILS}:{FACTORY}._create_backend)" in last
    assert last.count("expected a function") == 1
    assert "SGLANG_DRAFT_EXT_BACKENDS" in last
    assert "SGLANG_DRAFT_EXT_DISABLE=1" in last
    for goes_on in ({**ASKS, "SGLANG_DRAFT_EXT_DISABLE": "1"}, {}):
        allowed = launch(tmp_path, IMPORT, **goes_on)
        assert allowed.returncode == 0, allowed.stderr
        assert allowed.stdout.strip().startswith(str(tmp_path))
        assert "sglang_draft_ext" not in allowed.stderr


RETRY = """
    import sys
    for _ in range(3):
        try:
            import sglang.srt.server_args
        except Exception as error:
            print(type(error).__name__, "{}" in str(error))
    print("sglang.srt.server_args" in sys.modules)
"""


def test_a_refused_import_is_refused_again(tmp_path):
    attribute = f"{FACTORY}._create_triton_decode_backend"
    changed(tmp_path, points.DRAFT_UTILS, attribute, backends_instead_of_pairs)
    done = launch(tmp_path, RETRY.format(f"{points.DRAFT_UTILS}:{attribute}"), **ASKS)
    assert done.stdout == "HookError True\n" * 3 + "False\n", done.stderr
