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
import argparse, importlib, os, pickle, runpy, sys
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
"""
STOP = """
def stop(*_, **__):
    raise SystemExit(0)
"""
ROUTES = {
    "prepare_server_args": "attempt(lambda: stock.prepare_server_args(ARGUMENTS))",
    "from_cli_args": """
        parser = argparse.ArgumentParser()
        stock.ServerArgs.add_cli_args(parser)
        namespace = parser.parse_args(ARGUMENTS)
        attempt(lambda: stock.ServerArgs.from_cli_args(namespace))
    """,
    "constructor": """
        def build():
            built = stock.ServerArgs(model_path=MODEL, device="cpu")
            if hasattr(built, "resolve_once"):
                built.resolve_once()
        attempt(build)
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
    "bench_one_batch": """
        sys.argv = ["bench_one_batch", "--model-path", MODEL + "/nothing", "--device", "cpu"]
        attempt(lambda: runpy.run_module("sglang.bench_one_batch", run_name="__main__"))
    """,
}
MODULES = {"serve": "sglang.cli", "bench_one_batch": "sglang.bench_one_batch"}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def run(model, code, *, asked="torch_native", **environ):
    """Run a program with this package at work; what it printed last, as JSON."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_DRAFT_EXT_", "PYTEST"))}
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([environ.pop("PYTHONPATH", tests), tests, os.environ.get("PYTHONPATH", "")])
    if asked:
        clean["SGLANG_DRAFT_EXT_BACKENDS"] = asked
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + STOP + textwrap.dedent(code)],
        check=False,
        env={**clean, "PYTHONPATH": path, "MODEL": str(model), **environ},
        cwd=model,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


# Importing SGLang takes long, and a window closes once: each route is taken in a fork.
EVERY_ROUTE = """
import json
import sglang.srt.entrypoints.engine
import sglang.srt.server_args as stock

parser = argparse.ArgumentParser()
stock.ServerArgs.add_cli_args(parser)
parser.format_help()
try:
    pickle.loads(pickle.dumps(stock.ServerArgs(model_path="dummy")))
except ImportError:
    pass  # before 0.5.4, these too are resolved, and ask for a GPU's libraries
opened = [late(lambda: register("early"))]
opened += [late(lambda: getattr(stock, helper)(["third_party"])) for helper in HELPERS]
assert "third_party" in stock.ATTENTION_BACKEND_CHOICES

def closed(route):
    exec(route, globals())
    yield late(lambda: register("later"))
    for helper in HELPERS:
        yield late(lambda: getattr(stock, helper)(["third_party"]))
    stock.ATTENTION_BACKEND_CHOICES.append("written")
    yield late(lambda: stock.ServerArgs.from_cli_args(argparse.Namespace()))
    stock.ATTENTION_BACKEND_CHOICES.remove("written")
    os.environ["SGLANG_DRAFT_EXT_SELECT"] = "decode=triton"
    yield late(lambda: stock.ServerArgs.from_cli_args(argparse.Namespace()))

said = {}
for name, route in ROUTES.items():
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, json.dumps([*closed(route)]).encode())
        except BaseException as error:
            os.write(writer, json.dumps(f"{type(error).__name__}: {error}").encode())
        finally:
            os._exit(0)
    os.close(writer)
    said[name] = json.loads(os.read(reader, 10000))
    os.wait()
print()
print(json.dumps([opened, said]))
"""


def test_the_window_stays_open_until_arguments_are_parsed_or_built(model):
    routes = {name: textwrap.dedent(route) for name, route in ROUTES.items() if _has(MODULES.get(name))}
    opened, said = run(model, f"HELPERS, ROUTES = {HELPERS!r}, {routes!r}\n{EVERY_ROUTE}")
    assert opened == [False] * (1 + len(HELPERS))
    assert said == dict.fromkeys(routes, [True] * (3 + len(HELPERS)))


def _has(module):
    return module is None or find_spec(module) is not None


def test_where_nothing_asks_for_this_package_stock_is_stock(model):
    code = f"""
    import json
    import sglang.srt.server_args as stock

    {textwrap.indent(textwrap.dedent(ROUTES["constructor"]), "    ").strip()}
    helpers = [getattr(stock, helper) for helper in {HELPERS}]
    for helper in helpers:
        helper(["third_party"])
    attempt(lambda: stock.prepare_server_args(ARGUMENTS))
    print()
    print(json.dumps([type(helper).__name__ for helper in helpers]))
    """
    kinds = {"a function": "function"}
    expected = [kinds.get(era("choices helper"), "builtin_function_or_method")] * len(HELPERS)
    assert run(model, code, asked="") == expected


LATE_START = """
import json
sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not sys.modules.get("sglang_draft_ext._startup")]
import sglang.srt.server_args as stock
import sglang.srt.model_executor.model_runner
"""


@pytest.mark.skipif(not HAS_PLUGINS, reason="this release has no plugins")
def test_a_plugin_starts_this_package_in_time_or_says_so(model):
    code = LATE_START + textwrap.dedent("""
    from sglang_draft_ext import _finder, hooks
    held = stock.ServerArgs(model_path=MODEL, device="cpu") if os.environ["HELD"] else None
    from sglang.srt.plugins import load_plugins
    load_plugins()
    stale = [
        name
        for hook in hooks.activation.applied
        if hook.wrapper and "." not in hook.attribute
        for name, module in list(sys.modules.items())
        if name.startswith("sglang.") and hook.attribute in vars(module)
        and not hasattr(getattr(module, hook.attribute), "__wrapped__")
    ]
    refused = type(_finder.refusal).__name__
    print()
    print(json.dumps(["torch_native" in stock.ServerArgs.add_cli_args.__module__, bool(hooks.activation.applied), stale, refused]))
    """)
    assert run(model, code, HELD="")[1:] == [True, [], "NoneType"]
    assert run(model, code, HELD="1")[3] == "LateRegistrationError"


CHILD = """
import os, sys
if "spawn_main" in " ".join(sys.orig_argv) and os.environ.get("FORGET"):
    del os.environ["SGLANG_DRAFT_EXT_BACKENDS"]
"""
BEGIN = """
import importlib
from sglang_draft_ext import hooks, points, _finder

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
import json, multiprocessing, signal
import sglang.srt.server_args as stock
from sglang_draft_ext.carried import Carried
from children import begin

if __name__ == "__main__":
    signal.signal(signal.SIGQUIT, lambda *_: None)
    register("programmed")
    try:
        server_args = stock.ServerArgs(model_path="dummy")
    except ImportError:
        server_args = object.__new__(stock.ServerArgs)
    server_args._draft_ext = Carried.of_this_process(None)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=begin, args=(server_args, queue))
    process.start()
    said = queue.get(timeout=240)
    process.join()
    print()
    print(json.dumps(said))
"""


@pytest.mark.parametrize("forget", ["", "1"], ids=["equal", "different"])
def test_each_kind_of_process_compares_itself_with_its_parent(model, forget):
    (model / "sitecustomize.py").write_text(CHILD)
    (model / "children.py").write_text(BEGIN)
    said = run(model, PARENT, PYTHONPATH=str(model), FORGET=forget)
    assert len(said) == 4
    for error in said.values():  # without ports, none of them gets far
        assert error.startswith("AgreementError") == bool(forget), said
        assert ("draft backend 'torch_native': nothing here" in error) == bool(forget)
