"""The processes of a server agree, on the fake release: children of every kind, and the ranks of several nodes."""

import multiprocessing
import textwrap

import pytest
from unit.fake_release import python, write

pytestmark = pytest.mark.unit

ASKING = {"SGLANG_DRAFT_EXT_BACKENDS": "accel=provider:BACKEND"}
PROCESSES = {
    "scheduler": "Scheduler",
    "detokenizer_manager": "DetokenizerManager",
    "data_parallel_controller": "DataParallelController",
    "multi_tokenizer_mixin": "TokenizerWorker",
}
METHODS = [m for m in ("spawn", "forkserver", "fork") if m in multiprocessing.get_all_start_methods()]
# What makes the children differ is done where they start, as another environment would.
START = """
import os, sys
from sglang_draft_ext import _startup
_startup.run()
if "multiprocessing" in " ".join(sys.orig_argv):
    exec(os.environ.get("CHILD", ""))
"""
PROGRAM = """
import multiprocessing, os, signal, sys
from importlib import import_module

import sglang_draft_ext

{everywhere}

if __name__ == "__main__":
    {parent}
    from sglang.srt.server_args import ServerArgs

    server_args = ServerArgs()
    server_args.resolve_once()
    signal.signal(signal.SIGQUIT, lambda *_: print("told", flush=True))
    target = import_module("sglang.srt.managers.{module}").run_process
    process = multiprocessing.get_context("{method}").Process(target=target, args=(server_args,))
    process.start()
    process.join()
    print(process.exitcode)
"""
HIDE = """
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "provider":
            raise ModuleNotFoundError("hidden", name=name)
sys.meta_path.insert(0, Hide())
"""


@pytest.fixture
def release(tmp_path):
    folder = write(tmp_path)
    (folder / "sitecustomize.py").write_text(START)
    return folder


def launch(folder, module="scheduler", method="spawn", everywhere="", parent="pass", child="", **environ):
    """Start one process of a server; what was printed, and its exit code."""
    program = folder / "program.py"
    program.write_text(PROGRAM.format(everywhere=everywhere, parent=parent, module=module, method=method))
    code = (
        f"import runpy, sys; sys.argv[0] = {str(program)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    result = python(folder, code, CHILD=child, **environ)
    assert result.returncode == 0, result.stderr
    *lines, exit_code = result.stdout.strip().splitlines()
    # One that begins has nothing to say but the warning that the fake is no tested release.
    return "\n".join([*lines, *([] if exit_code == "0" else [result.stderr])]), int(exit_code)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("module", PROCESSES)
def test_a_child_that_agrees_begins(release, module, method):
    register = "import provider; sglang_draft_ext.register(provider.LIMITED)"
    assert launch(release, module, method, parent=register, **ASKING) == (f"{PROCESSES[module]} begins", 0)


@pytest.mark.parametrize(
    ("child", "said"),
    [
        (
            "os.environ['SGLANG_DRAFT_EXT_BACKENDS'] = 'accel=provider:LIMITED'",
            "draft backend 'accel': 'provider:LIMITED' declares a draft backend of another name here, DraftBackend(",
        ),
        (
            "os.environ['SGLANG_DRAFT_EXT_BACKENDS'] = 'accel=provider:attention'",
            "attention='provider:attention', decode=None, mla='any', page_sizes=None, max_topk=None, max_head_dim=None, ",
        ),
        ("del os.environ['SGLANG_DRAFT_EXT_BACKENDS']", "draft backend 'accel': nothing here, DraftBackend("),
        (
            "os.environ['SGLANG_DRAFT_EXT_BACKENDS'] += ',wave'",
            "draft backend 'wave': DraftBackend(name='wave', attention='stock:wave',",
        ),
        ("os.environ['SGLANG_DRAFT_EXT_BACKENDS'] += ',wawe'", "Nobody provides a draft backend 'wawe'"),
        (
            "os.environ['SGLANG_DRAFT_EXT_SELECT'] = 'decode=accel'",
            "SGLANG_DRAFT_EXT_SELECT: decode=accel here, nothing in the process that started it",
        ),
        (HIDE, "draft backend 'accel': 'provider:BACKEND' cannot be imported here"),
        (
            "import sglang_draft_ext; sglang_draft_ext.__version__ = '9'",
            "version: 9 here, 0.1.0 in the process that started it",
        ),
        ("os.environ['SGLANG_DRAFT_EXT_DISABLE'] = '1'", "SGLANG_DRAFT_EXT_DISABLE"),
    ],
    ids=[
        "reference",
        "declaration",
        "missing",
        "more",
        "unknown",
        "selection",
        "hidden",
        "version",
        "disabled",
    ],
)
def test_a_child_that_differs_does_not_begin(release, child, said):
    out, exit_code = launch(release, child=child, **ASKING)
    assert exit_code == 3, out
    assert said in out
    assert "Scheduler begins" not in out


@pytest.mark.parametrize("method", [m for m in METHODS if m != "fork"])
@pytest.mark.parametrize("module", PROCESSES)
def test_each_kind_of_process_refuses(release, module, method):
    forget = "del os.environ['SGLANG_DRAFT_EXT_BACKENDS']"
    out, exit_code = launch(release, module, method, child=forget, **ASKING)
    assert exit_code == 3
    assert "A process of the server was asked for something else" in out
    assert f"Asked in: {PROCESSES[module]}, process" in out
    assert ("told" in out) == (module == "multi_tokenizer_mixin")


def test_a_forked_child_whose_environment_was_changed_does_not_begin(release):
    change = "os.register_at_fork(after_in_child=lambda: os.environ.pop('SGLANG_DRAFT_EXT_BACKENDS'))"
    out, exit_code = launch(release, method="fork", parent=f"import os; {change}", **ASKING)
    assert exit_code == 3
    assert "SGLANG_DRAFT_EXT_BACKENDS was 'accel=provider:BACKEND' and is None" in out


@pytest.mark.parametrize(
    ("module", "begins"),
    [("scheduler", True), ("data_parallel_controller", True), ("detokenizer_manager", False)],
)
def test_on_several_nodes_a_child_that_differs_leaves_it_to_the_ranks_to_refuse(release, module, begins):
    """They tell the other nodes, whose ranks wait for those of this one."""
    change = "from sglang.srt.server_args import ServerArgs; ServerArgs.nnodes = 2"
    forget = "del os.environ['SGLANG_DRAFT_EXT_BACKENDS']; import datetime, sglang_draft_ext.guard as guard"
    forget += "; guard.TELLING = datetime.timedelta(seconds=0)"
    out, exit_code = launch(release, module, everywhere=change, child=forget, **ASKING)
    assert exit_code == (0 if begins else 3)
    assert (f"{PROCESSES[module]} begins" in out) == begins
    assert ("A process of the server was asked for something else" in out) != begins


def test_on_several_nodes_a_child_that_cannot_compare_ranks_refuses_at_once(release):
    change = "from sglang.srt.server_args import ServerArgs; ServerArgs.nnodes = 2"
    deferred = "from sglang_draft_ext import errors, hooks; import sglang"
    deferred += "; hooks.activation.deferred = errors.HookError('does not match')"
    out, exit_code = launch(release, everywhere=change, child=deferred, **ASKING)
    assert exit_code == 3
    assert "HookError does not match" in out


@pytest.mark.parametrize("method", METHODS)
def test_a_program_that_registers_in_every_process_registers_the_same(release, method):
    everywhere = "import provider\nsglang_draft_ext.register(provider.LIMITED)"
    assert launch(release, method=method, everywhere=everywhere) == ("Scheduler begins", 0)


PLUGIN = """
import sglang_draft_ext, provider
def load():
    if {condition}:
        sglang_draft_ext.register(provider.LIMITED)
"""


@pytest.mark.parametrize(
    ("condition", "exit_code", "said"),
    [
        ("True", 0, "Scheduler begins"),
        (
            "__import__('multiprocessing').parent_process()",
            3,
            "here, nothing in the process that started it",
        ),
    ],
    ids=["in both", "in the child alone"],
)
def test_what_a_plugin_registers(release, condition, exit_code, said):
    """SGLang runs plugins before arguments are parsed, and in a child once the arguments are unpickled."""
    (release / "plugin.py").write_text(PLUGIN.format(condition=condition))
    scheduler = release / "sglang/srt/managers/scheduler.py"
    scheduler.write_text(
        scheduler.read_text().replace("    try:", "    import plugin\n    plugin.load()\n    try:")
    )
    out = launch(release, parent="import plugin; plugin.load()")
    assert out[1] == exit_code, out
    assert said in out[0]


def test_a_factory_that_cannot_be_imported_stops_the_scheduler_only(release):
    declare = "sglang_draft_ext.register(sglang_draft_ext.DraftBackend(name='b', attention='gone:attention'))"
    out, exit_code = launch(release, parent=declare)
    assert exit_code == 3
    assert "BackendError 'gone:attention' cannot be imported" in out
    assert launch(release, "detokenizer_manager", parent=declare) == ("DetokenizerManager begins", 0)


def test_a_child_of_a_parent_that_asked_for_nothing_asks_for_nothing(release):
    out, exit_code = launch(release, child="os.environ['SGLANG_DRAFT_EXT_BACKENDS'] = 'wave'")
    assert exit_code == 3
    assert "draft backend 'wave': DraftBackend(" in out
    assert "here, nothing in the process that started it" in out


# Ranks

RANKS = """
    import sys, threading
    from datetime import timedelta
    from sglang_draft_ext import guard, hooks
    from sglang_draft_ext.errors import DraftExtError
    from sglang.srt.server_args import ServerArgs

    guard.PATIENCE = timedelta(seconds=1)
    hooks.activate()

    class Store:
        def __init__(self):
            self.content, self.changed = {}, threading.Condition()
        def set(self, key, value):
            with self.changed:
                self.content[key] = value.encode()
                self.changed.notify_all()
        def get(self, key):
            return self.content[key]
        def check(self, keys):
            return {*keys} <= {*self.content}
        def wait(self, keys, timeout):
            with self.changed:
                if not self.changed.wait_for(lambda: {*keys} <= {*self.content}, timeout.total_seconds()):
                    raise RuntimeError("timeout")

    def compare(rank, selection):
        refusal = DraftExtError("refused") if selection == "refused" else None
        try:
            guard.agree_with_ranks(store, rank, 2, selection=selection, refusal=refusal)
            said[rank] = "agreed"
        except Exception as error:
            said[rank] = f"{type(error).__name__} {error}"

    store, said = Store(), {}
    threads = [threading.Thread(target=compare, args=item) for item in enumerate(sys.argv[1:])]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    for rank in sorted(said): print(said[rank])
"""


def ranks(folder, *selections):
    code = f"import sys; sys.argv[1:] = {list(selections)!r}\n" + textwrap.dedent(RANKS)
    result = python(folder, code, **ASKING)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_ranks_that_agree(release):
    assert ranks(release, "decode=accel", "decode=accel") == ["agreed", "agreed"]


def test_ranks_that_differ_all_say_so(release):
    first, second = ranks(release, "decode=accel", "decode=triton")
    assert "selection: decode=accel here, decode=triton on rank 1" in first
    assert "selection: decode=triton here, decode=accel on rank 0" in second


def test_a_rank_that_is_refused_tells_the_others(release):
    first, second = ranks(release, "decode=accel", "refused")
    assert first.startswith("AgreementError")
    assert "refusal: nothing here, refused" in first
    assert second.startswith("DraftExtError refused")


def test_ranks_that_are_refused_alike_do_not_agree(release):
    assert [said.startswith("DraftExtError refused") for said in ranks(release, "refused", "refused")] == [
        True,
        True,
    ]


def test_a_rank_where_nothing_is_asked_never_answers(release):
    (said,) = ranks(release, "decode=accel")
    assert "draft backend 'accel': DraftBackend(" in said
    assert "nothing on rank 1" in said
