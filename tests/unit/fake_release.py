"""A tiny `sglang` with the newest release's shapes at every hook, for tests that need no SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

FILES = {
    "__init__.py": "__version__ = '9.9.9'\n",
    "srt/__init__.py": "",
    "srt/arg_groups/__init__.py": "",
    "srt/arg_groups/choices.py": """
        ATTENTION_BACKEND_CHOICES = ["triton", "torch_native", "wave"]
        DRAFT_ATTENTION_BACKEND_CHOICES = ["triton", "flashinfer"]
        add_attention_backend_choices = ATTENTION_BACKEND_CHOICES.extend
        add_draft_attention_backend_choices = DRAFT_ATTENTION_BACKEND_CHOICES.extend
    """,
    "srt/arg_groups/overrides.py": """
        def resolved_view(server_args):
            return server_args

        def declare_resolution(server_args, source, **fields):
            server_args.__dict__.update(fields)
    """,
    "srt/arg_groups/speculative_hook.py": """
        from sglang.srt.arg_groups.choices import DRAFT_ATTENTION_BACKEND_CHOICES

        def _resolve_dflash_draft_attention_backend(server_args):
            if server_args.speculative_draft_attention_backend not in ("triton", "flashinfer"):
                server_args.speculative_draft_attention_backend = "flashinfer"
    """,
    "srt/server_args.py": """
        import argparse

        from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, DRAFT_ATTENTION_BACKEND_CHOICES
        from sglang.srt.arg_groups.choices import add_attention_backend_choices, add_draft_attention_backend_choices

        class ServerArgs:
            model_path = "tiny"
            speculative_algorithm = None
            speculative_draft_attention_backend = None
            prefill_attention_backend = None
            decode_attention_backend = None
            attention_backend = "triton"
            speculative_eagle_topk = 1
            page_size = 1
            nnodes = 1
            device = "cuda"
            disable_overlap_schedule = False
            speculative_draft_model_path = speculative_draft_model_revision = None

            def __init__(self, **kwargs):
                self.__dict__.update(kwargs)
                self._kept_post_init()

            def __post_init__(self):
                self._built = True

            _kept_post_init = __post_init__  # as msgspec does

            def __reduce__(self):
                return _rebuild_server_args, (type(self), {}, self.__dict__)

            speculative_attention_mode = "prefill"
            speculative_num_steps = 3

            @staticmethod
            def add_cli_args(parser):
                parser.add_argument("--speculative-draft-attention-backend")

            @classmethod
            def from_cli_args(cls, args):
                return cls(**vars(args))

            def __setattr__(self, name, value):
                if getattr(self, "_resolved", False) and not name.startswith("_"):
                    raise AttributeError(f"{name} assigned after resolution")
                self.__dict__[name] = value

            def resolve_once(self):
                self._resolved = True

        def _rebuild_server_args(cls, fields, bookkeeping):
            record = object.__new__(cls)
            record._kept_post_init()  # msgspec, too, calls it from here
            record.__dict__.update(bookkeeping)
            return record

        def prepare_server_args(argv):
            parser = argparse.ArgumentParser()
            ServerArgs.add_cli_args(parser)
            return ServerArgs.from_cli_args(parser.parse_args(argv))
    """,
    "srt/entrypoints/__init__.py": "",
    "srt/entrypoints/engine.py": """
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import ServerArgs

        class Engine:
            def __init__(self, **kwargs):
                load_plugins()
                self.server_args = ServerArgs(**kwargs)
                self.server_args.resolve_once()
    """,
    "srt/plugins/__init__.py": """
        from importlib.metadata import entry_points

        def load_plugins():
            for point in entry_points(group="sglang.srt.plugins"):
                try:
                    point.load()()
                except Exception as error:
                    print("swallowed", type(error).__name__)
    """,
    "srt/managers/__init__.py": "",
    **{
        f"srt/managers/{module}.py": f"""
        class {owner}:
            def __init__(self, server_args, port_args):
                print("{owner} begins", flush=True)

            def get_internal_state(self, request):
                return {{}}

        def run_process(server_args):
            try:
                {owner}(server_args, None)
            except Exception as error:
                print(type(error).__name__, error)
                raise SystemExit(3)
    """
        for module, owner in {
            "scheduler": "Scheduler",
            "detokenizer_manager": "DetokenizerManager",
            "data_parallel_controller": "DataParallelController",
            "multi_tokenizer_mixin": "TokenizerWorker",
        }.items()
    },
    "srt/layers/__init__.py": "",
    "srt/layers/attention/__init__.py": "",
    "srt/layers/attention/base_attn_backend.py": """
        class AttentionBackend:
            pass
    """,
    "srt/layers/attention/attention_registry.py": """
        from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

        class TorchNative(AttentionBackend):
            def __init__(self, runner):
                self.runner = runner

        ATTENTION_BACKENDS = {}

        def register_attention_backend(name):
            def decorator(function):
                ATTENTION_BACKENDS[name] = function
                return function

            return decorator

        @register_attention_backend("triton")
        def create_triton_backend(runner):
            return TorchNative(runner)

        @register_attention_backend("torch_native")
        def create_torch_native_backend(runner):
            return TorchNative(runner)

        @register_attention_backend("wave")
        def create_wave_backend(runner):
            return TorchNative(runner)
    """,
    "srt/layers/attention/hybrid_attn_backend.py": """
        class HybridAttnBackend:
            def __init__(self, model_runner, prefill_backend, decode_backend):
                self.prefill_backend = prefill_backend
                self.decode_backend = decode_backend

            def _select_backend(self, forward_mode):
                return self.decode_backend if forward_mode.name == "DECODE" else self.prefill_backend
    """,
    "srt/model_executor/__init__.py": "",
    "srt/model_executor/model_runner.py": """
        from sglang.srt.model_executor.model_runner_components.attention_backend_setup import resolve_attention_backend_strs

        class ModelRunner:
            is_draft_worker = False

            def __init__(self, server_args):
                self.server_args = server_args

            def init_torch_distributed(self):
                pass
    """,
    "srt/model_executor/model_runner_components/__init__.py": "",
    "srt/model_executor/model_runner_components/attention_backend_setup.py": """
        def resolve_attention_backend_strs(*, model_runner):
            return None
    """,
    "srt/configs/__init__.py": "",
    "srt/configs/model_config.py": """
        import enum
        from types import SimpleNamespace

        class AttentionArch(enum.Enum):
            MLA = enum.auto()
            MHA = enum.auto()

        class ModelConfig:
            head_dim = 128
            hf_config = SimpleNamespace(architectures=["TinyForCausalLM"])
            is_encoder_decoder = False
            sliding_window_size = attention_chunk_size = None

            def __init__(self, path):
                print("read the draft's configuration")
                self.attention_arch = AttentionArch.MLA if "mla" in (path or "") else AttentionArch.MHA

            @staticmethod
            def from_server_args(server_args, model_path=None, model_revision=None, is_draft_model=False):
                assert is_draft_model
                return ModelConfig(model_path)
    """,
    "srt/model_executor/forward_batch_info.py": """
        class ForwardMode:
            DRAFT_EXTEND_V2 = 1
    """,
    "srt/speculative/__init__.py": "",
    **{
        f"srt/speculative/{module}.py": f"""
        class {runner}:
            def __init__(self, eagle_worker, *, {backend}=None):
                self.eagle_worker = eagle_worker
    """
        for module, runner, backend in (
            ("eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner", "draft_attn_backend"),
            (
                "eagle_draft_extend_cuda_graph_runner",
                "EAGLEDraftExtendCudaGraphRunner",
                "draft_extend_attn_backend",
            ),
        )
    },
    "srt/speculative/multi_layer_eagle_worker_v2.py": "",
    "srt/speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py": """
        class MultiLayerEagleMultiStepDraftExtendCudaGraphRunner:
            def __init__(self, eagle_worker):
                self.eagle_worker = eagle_worker
    """,
    "srt/speculative/draft_worker_common.py": """
        from sglang.srt.server_args import DRAFT_ATTENTION_BACKEND_CHOICES

        def resolve_draft_worker_attention_backend(*, algo_label=None):
            return "flashinfer"
    """,
    "srt/speculative/draft_utils.py": """
        class DraftBackendFactory:
            def __init__(self, draft_model_runner, topk, speculative_num_steps):
                self.draft_model_runner = draft_model_runner
                self.topk = topk
                self.speculative_num_steps = speculative_num_steps
                self.draft_attn_backend = draft_model_runner.draft_attention_backend

            def _create_backend(self, backend_name, backend_map, error_template, stamps_children=False):
                if self.draft_attn_backend not in backend_map:
                    raise ValueError(error_template.format(backend_type=self.draft_attn_backend))
                stamp, backend = backend_map[self.draft_attn_backend]()
                return stamp, backend

            def create_decode_backend(self):
                backend_map = {"triton": self._create_triton_decode_backend}
                return self._create_backend("decode_attention_backend", backend_map, "no decode {backend_type}")

            def create_draft_extend_backend(self):
                backend_map = {"triton": self._create_triton_prefill_backend}
                return self._create_backend("decode_attention_backend", backend_map, "no extend {backend_type}")

            def _create_triton_decode_backend(self):
                return "triton", "stock decode"

            def _create_triton_prefill_backend(self):
                return "triton", "stock extend"
    """,
}

PROVIDER = """
    from sglang_draft_ext import DraftBackend

    def attention(runner):
        from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

        built = AttentionBackend()
        built.runner = runner
        return built

    class Steps:
        def __init__(self, runner, topk, num_steps):
            self.given = (runner, topk, num_steps)
            self.attn_backends = [attention(runner)] * (num_steps - 1)

        def init_forward_metadata(self, forward_batch):
            pass

    def wrong(runner, *rest):
        return "no backend"

    BACKEND = DraftBackend(name="accel", attention=attention, decode=Steps)
    LIMITED = DraftBackend(name="limited", attention=attention, page_sizes=(16, 64), max_topk=2)
"""


def write(folder: Path, changes: dict[str, tuple[str, str] | None] | None = None) -> Path:
    """Write the release and a provider under *folder*; *changes* maps a file to (old, new) text, or None to leave it out."""
    for name, indented in FILES.items():
        text = textwrap.dedent(indented).lstrip()
        change = (changes or {}).get(name, ("", ""))
        if change is None:
            continue
        assert change[0] in text, f"{change[0]!r} is not in {name}"
        path = folder / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(*change, 1) if change[0] else text)
    (folder / "provider.py").write_text(textwrap.dedent(PROVIDER))
    return folder


def python(folder: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a fresh interpreter that has the release of *folder* and this package's start-up."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "PYTHON"))}
    path = os.pathsep.join(map(str, (folder, ROOT, ROOT / "sitecustomize")))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        check=False,
        env={**clean, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
