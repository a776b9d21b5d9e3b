"""The window and the agreement, on the release's own modules: each test is a program of its own, since a window closes once."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest
from contract.release import SURFACE, era

from sglang_draft_ext import points
from sglang_draft_ext.releases import TESTED

pytestmark = pytest.mark.contract

HAS_PLUGINS = SURFACE.source("sglang.srt.plugins") is not None
HELPERS = [
    helper
    for helper in ("add_attention_backend_choices", "add_draft_attention_backend_choices")
    if SURFACE.get(points.SERVER_ARGS, helper)
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 64,
    "max_position_embeddings": 128, "torch_dtype": "float32",
}  # fmt: skip
PRELUDE = """
import argparse, copyreg, importlib, json, os, pickle, runpy, sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
import sglang_draft_ext
from sglang_draft_ext import DraftBackend, LateRegistrationError

MODEL = os.environ["MODEL"]
ARGUMENTS = ["--model-path", MODEL, "--device", "cpu"]

def late(call):
    try:
        call()
    except LateRegistrationError as error:
        assert "parsed or built at" in error.found and error.where, error
        return True
    return False

def register(name):
    sglang_draft_ext.register(DraftBackend(name=name, attention="contract.provider:attention"))

def attempt(call):
    # What comes after the arguments is not asked for here.
    try:
        call()
    except LateRegistrationError:
        raise
    except BaseException as error:
        print("ended with", type(error).__name__, str(error)[:200], file=sys.stderr)

def stop(*_, **__):
    raise SystemExit(0)

def placeholder(stock):
    try:
        return stock.ServerArgs(model_path="dummy")
    except (ImportError, RuntimeError):  # up to 0.5.3.post3 these are resolved, too, and ask for a GPU
        return object.__new__(stock.ServerArgs)

class Unpickled:
    # What a child gets: nothing was built here.
    def __init__(self, stock):
        self.stock = stock
    def __reduce__(self):
        fields = {"model_path": MODEL}
        if hasattr(self.stock, "_rebuild_server_args"):
            return self.stock._rebuild_server_args, (self.stock.ServerArgs, fields, {})
        return copyreg._reconstructor, (self.stock.ServerArgs, object, None), fields

# Importing SGLang takes long, and a window closes once: each attempt is made in a fork.
def forked(call):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, json.dumps(call()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    said = b"".join(iter(lambda: os.read(reader, 10000), b""))
    os.wait()
    return json.loads(said)
"""
ROUTES = {
    "prepare_server_args": "attempt(lambda: stock.prepare_server_args(ARGUMENTS))",
    "from_cli_args": """
        parser = argparse.ArgumentParser()
        stock.ServerArgs.add_cli_args(parser)
        namespace = parser.parse_args(ARGUMENTS)
        attempt(lambda: stock.ServerArgs.from_cli_args(namespace))
    """,
    "constructor": "attempt(lambda: stock.ServerArgs(model_path=MODEL, device='cpu'))",
    "several": """
        for page_size in (1, 16):
            attempt(lambda: stock.ServerArgs(model_path=MODEL, device="cpu", page_size=page_size))
    """,
    "Engine": """
        from sglang.srt.entrypoints.engine import Engine
        attempt(lambda: Engine(model_path=MODEL + "/nothing", device="cpu"))
    """,
    "serve": """
        import sglang.launch_server
        sglang.launch_server.run_server = stop
        from sglang.cli.main import main
        # Whether the model is an image model is not asked of the model hub here.
        vars(importlib.import_module("sglang.cli.serve")).update(get_is_diffusion_model=lambda *_, **__: False)
        sys.argv = ["sglang", "serve", *ARGUMENTS]
        attempt(main)
    """,
    **{
        tool: f"""
        # It loads no data set here, and the library for that need not fit the libraries of an older release.
        sys.modules["datasets"] = module_from_spec(ModuleSpec("datasets", None))
        sys.modules["datasets"].load_dataset = stop
        sys.argv = ["{tool}", "--model-path", MODEL + "/nothing", "--device", "cpu"]
        attempt(lambda: runpy.run_module("sglang.{tool}", run_name="__main__"))
        """
        for tool in ("bench_one_batch", "bench_offline_throughput")
    },
}
MODULES = {
    "serve": "sglang.cli",
    "bench_one_batch": "sglang.bench_one_batch",
    "bench_offline_throughput": "sglang.bench_offline_throughput",
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def run(model, code, *, asked="torch_native", **environ):
    """Run a program with this package at work; what it printed last, as JSON."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_DRAFT_EXT_", "PYTEST"))}
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([str(model), tests, os.environ.get("PYTHONPATH", "")])
    if asked:
        clean["SGLANG_DRAFT_EXT_BACKENDS"] = asked
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        check=False,
        env={**clean, "PYTHONPATH": path, "MODEL": str(model), "HF_HUB_OFFLINE": "1", **environ},
        cwd=model,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


EVERY_ROUTE = """
import sglang.srt.entrypoints.engine
import sglang.srt.server_args as stock
from sglang_draft_ext import guard

parser = argparse.ArgumentParser()
stock.ServerArgs.add_cli_args(parser)
parser.format_help()
pickle.loads(pickle.dumps(placeholder(stock)))
pickle.loads(pickle.dumps(Unpickled(stock)))
sys.argv = ["bench_serving", "--help"]
attempt(lambda: runpy.run_module("sglang.bench_serving", run_name="__main__"))  # a client of servers
opened = [late(lambda: register("early"))]
opened += [late(lambda: getattr(stock, helper)(["third_party"])) for helper in HELPERS]
assert "third_party" in stock.ATTENTION_BACKEND_CHOICES

def closed(route):
    exec(route, globals())
    yield late(lambda: register("later"))
    for helper in HELPERS:
        yield late(lambda: getattr(stock, helper)(["third_party"]))
    guard.checkpoint()
    if REGISTRY:  # stock's modules and third parties register there when they are imported
        importlib.import_module(REGISTRY).ATTENTION_BACKENDS["third_party"] = stop
    guard.checkpoint()
    stock.ATTENTION_BACKEND_CHOICES.append("written")
    yield late(guard.checkpoint)
    stock.ATTENTION_BACKEND_CHOICES.remove("written")
    os.environ["SGLANG_DRAFT_EXT_SELECT"] = "decode=triton"
    yield late(guard.checkpoint)

said = {name: forked(lambda: [*closed(route)]) for name, route in ROUTES.items()}
print()
print(json.dumps([opened, said]))
"""


def test_the_window_stays_open_until_arguments_are_parsed_or_built(model):
    routes = {name: textwrap.dedent(route) for name, route in ROUTES.items() if _has(MODULES.get(name))}
    registry = points.ATTENTION_REGISTRY if SURFACE.source(points.ATTENTION_REGISTRY) else None
    names = f"HELPERS, ROUTES, REGISTRY = {HELPERS!r}, {routes!r}, {registry!r}\n"
    opened, said = run(model, names + EVERY_ROUTE)
    assert opened == [False] * (1 + len(HELPERS))
    assert said == dict.fromkeys(routes, [True] * (3 + len(HELPERS)))


def _has(module):
    return module is None or find_spec(module) is not None


def test_a_provider_that_registers_while_arguments_are_parsed_is_late(model):
    (model / "eager.py").write_text(
        "import sglang_draft_ext\n"
        "BACKEND, MORE = (sglang_draft_ext.DraftBackend(name=n, attention='gone:x') for n in ('eager', 'more'))\n"
        "sglang_draft_ext.register(MORE)\n"
    )
    distribution(model, "sglang_draft_ext.backends", "eager", "eager:BACKEND")
    code = """
    import sglang.srt.server_args as stock
    parse = lambda: stock.prepare_server_args(ARGUMENTS)
    print(json.dumps([late(parse), late(lambda: register("after"))]))
    """
    assert run(model, code, asked="eager") == [True, True]


def test_where_nothing_asks_for_this_package_stock_is_stock(model):
    code = f"""
    import sglang.srt.server_args as stock

    {ROUTES["constructor"]}
    helpers = [getattr(stock, helper) for helper in {HELPERS}]
    for helper in helpers:
        helper(["third_party"])
    stock.ATTENTION_BACKEND_CHOICES.append("written")
    attempt(lambda: stock.prepare_server_args(ARGUMENTS))
    print()
    print(json.dumps([type(helper).__name__ for helper in helpers]))
    """
    kinds = {"a function": "function"}
    expected = [kinds.get(era("choices helper"), "builtin_function_or_method")] * len(HELPERS)
    assert run(model, code, asked="") == expected


# What is swallowed where it happens


def distribution(folder, group, name, reference):
    """A distribution with one entry point."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {reference}\n")


@pytest.mark.parametrize("place", [".pth", "sitecustomize"])
def test_what_is_swallowed_at_the_start_is_raised_by_the_import(model, place):
    wrong = "import sglang_draft_ext; sglang_draft_ext.register(7)\n"
    (model / "site").mkdir()
    (model / "site" / "provider.pth").write_text(wrong)
    add = f"import site; site.addsitedir({str(model / 'site')!r})\n"
    (model / "sitecustomize.py").write_text(add if place == ".pth" else wrong)
    code = """
    said = []
    for attempt in range(2):
        try:
            import sglang.srt.server_args
        except sglang_draft_ext.BackendError as error:
            said.append(error.problem)
    print(json.dumps(said))
    """
    assert run(model, code, asked="") == ["7 is not a DraftBackend"] * 2


@pytest.mark.skipif(not HAS_PLUGINS, reason="this release has no plugins")
def test_what_sglang_swallows_of_a_plugin_is_raised_when_arguments_are_parsed(model):
    (model / "bad_plugin.py").write_text(
        "import sglang_draft_ext\ndef load(): sglang_draft_ext.register(7)\n"
    )
    distribution(model, "sglang.srt.plugins", "bad", "bad_plugin:load")
    code = """
    import sglang.srt.server_args as stock
    from sglang.srt.plugins import load_plugins
    load_plugins()
    said = None
    try:
        stock.prepare_server_args(ARGUMENTS)
    except sglang_draft_ext.BackendError as error:
        said = error.problem
    print(json.dumps(said))
    """
    assert run(model, code, asked="") == "7 is not a DraftBackend"


# Started after SGLang was imported

LATE_START = """
sys.meta_path.remove(sys.modules["sglang_draft_ext._startup"])
import sglang.srt.server_args as stock
import sglang.srt.model_executor.model_runner
from sglang_draft_ext import _finder

def start(trigger, held):
    built = pickle.loads(pickle.dumps(Unpickled(stock))) if held else None
    if trigger == "plugin":
        from sglang.srt.plugins import load_plugins
        load_plugins()  # which swallows
        error = _finder.refusal
    else:
        error = None
        try:
            register("started")
        except LateRegistrationError as raised:
            error = raised
    from sglang_draft_ext import hooks
    stale = [
        name
        for hook in hooks.activation.applied
        if hook.wrapper and "." not in hook.attribute
        for name, module in list(sys.modules.items())
        if name.startswith("sglang.") and hook.attribute in vars(module)
        and not hasattr(getattr(module, hook.attribute), "__wrapped__")
    ]
    extra = [name for name in stock.ATTENTION_BACKEND_CHOICES if name in ("contract", "started")]
    return [type(error).__name__, extra, stale]

triggers = ("register", "plugin") if PLUGINS else ("register",)
print()
print(json.dumps([[forked(lambda: start(trigger, held)) for trigger in triggers] for held in (False, True)]))
"""


def test_a_start_after_the_import_patches_all_of_it_or_says_that_it_is_late(model):
    code = f"PLUGINS = {HAS_PLUGINS}\n{LATE_START}"
    in_time, late = run(model, code, asked="contract=contract.provider:BACKEND")
    assert (
        in_time == [["NoneType", ["contract", "started"], []], ["NoneType", ["contract"], []]][: len(in_time)]
    )
    assert late == [["LateRegistrationError", [], []]] * len(in_time)


# Agreement

# Releases spawn their children; what a program starts otherwise depends on Python, so one release is enough for it.
METHODS = ("spawn", "forkserver", "fork") if SURFACE.version == TESTED[-1] else ("spawn",)
CHILD = """
import os, sys
child = any(main in " ".join(sys.orig_argv) for main in ("spawn_main", "forkserver import main"))
if child and os.environ.get("FORGET"):
    os.environ.pop("SGLANG_DRAFT_EXT_BACKENDS", None)
"""
BEGIN = """
import importlib
from sglang_draft_ext import hooks, points

def begin(server_args, queue):
    said = {}
    for point in points.POINTS:
        if point.name.endswith(" process"):
            (hook,) = point.era(hooks.activation.surface).hooks
            owner, _, _ = hook.attribute.partition(".")
            constructor = getattr(importlib.import_module(hook.module), owner)
            try:
                constructor(server_args, None)
            except Exception as error:
                said[owner] = f"{type(error).__name__} {error}"
    queue.put(said)
"""
PARENT = """
import multiprocessing, signal
import sglang.srt.server_args as stock
from sglang_draft_ext.carried import Carried
from children import begin

if __name__ == "__main__":
    signal.signal(signal.SIGQUIT, lambda *_: None)  # a tokenizer worker's
    register("programmed")
    server_args = placeholder(stock)
    server_args._draft_ext = Carried.of_this_process(None)
    if os.environ["FORGET"]:
        os.register_at_fork(after_in_child=lambda: os.environ.pop("SGLANG_DRAFT_EXT_BACKENDS", None))
    started = []
    for method in METHODS:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=begin, args=(server_args, queue))
        process.start()
        started.append((process, queue))
    said = [queue.get(timeout=280) for _, queue in started]
    for process, _ in started:
        process.join()
    print()
    print(json.dumps(said))
"""


@pytest.mark.parametrize("forget", ["", "1"], ids=["equal", "different"])
def test_each_kind_of_process_compares_itself_with_its_parent(model, forget):
    (model / "sitecustomize.py").write_text(CHILD)
    (model / "children.py").write_text(BEGIN)
    said = dict(zip(METHODS, run(model, f"METHODS = {METHODS}\n{PARENT}", FORGET=forget), strict=True))
    for method, children in said.items():
        assert len(children) == 4, said
        for error in children.values():  # without ports, none of them gets far
            assert error.startswith(("AgreementError", "LateRegistrationError")) == bool(forget), said
            forgot = "was 'torch_native' and is None" if method == "fork" else "'torch_native': nothing here"
            assert (forgot in error) == bool(forget), said
