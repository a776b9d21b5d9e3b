"""The same for releases that know no plugins: called from a start-up file, so nothing is imported before SGLang is."""

import functools
import os
from types import ModuleType

from sglang_reference_platform._after_import import after_import


@functools.cache  # Python reads the start-up files of a virtual environment twice
def install() -> None:
    after_import({"sglang": _first_import})


def _first_import(_) -> None:
    """SGLang's own modules are about to load, and torch with them."""
    from sglang_reference_platform import adaptations

    adaptations.install()
    after_import(ADAPTATIONS)


def _cached_triton_kernel(module) -> None:
    """Asserts a compiled kernel, and gets an interpreted one."""
    if os.environ.get("TRITON_INTERPRET") == "1" and hasattr(module, "cached_triton_kernel"):
        module.cached_triton_kernel = lambda key_fn=None: lambda kernel: kernel


class _HostTorch(ModuleType):
    """torch for a module that makes its tensors on `device="cuda"` whatever the server's device is."""

    def __init__(self, torch) -> None:
        super().__init__("torch")
        self._torch = torch

    def __getattr__(self, name):
        found = getattr(self._torch, name)
        if not callable(found) or isinstance(found, (type, ModuleType)):
            return found

        @functools.wraps(found)
        def on_the_host(*args, **kwargs):
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return found(*args, **kwargs)

        return on_the_host


def _speculative(module) -> None:
    """What these modules import from sgl_kernel, for some devices only, under the names they call it by."""
    from sglang_reference_platform import trees

    module.torch = _HostTorch(module.torch)
    if hasattr(module, "assign_req_to_token_pool_func"):
        # 0.5.4.post2 to 0.5.5.post3 launch the Triton kernel behind device flags; with none of them set they do nothing.
        module._is_hip = True
    module.sgl_build_tree_kernel_efficient = trees.build_tree
    module.verify_tree_greedy = trees.verify_tree_greedy_func
    if not hasattr(module, "fast_topk"):
        module.fast_topk = lambda values, topk, dim: values.topk(topk, dim=dim)


ADAPTATIONS = {
    "sglang.srt.utils.common": _cached_triton_kernel,
    **dict.fromkeys(
        [
            f"sglang.srt.speculative.{name}"
            for name in ("spec_utils", "eagle_info", "eagle_utils", "build_eagle_tree")
        ],
        _speculative,
    ),
}
