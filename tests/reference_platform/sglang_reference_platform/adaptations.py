"""What a release needs besides a platform, keyed by the module it concerns.

Every adaptation looks at what its module has and does nothing where nothing is needed.
"""

import torch

from sglang_reference_platform import probe, trees
from sglang_reference_platform._after_import import after_import


def install() -> None:
    _make_cuda_calls_harmless()
    after_import(ADAPTATIONS)
    if probe.wanted():
        after_import(probe.ADAPTATIONS)


def _make_cuda_calls_harmless() -> None:
    """Some draft models synchronise CUDA whatever the device is when they take over the target's embedding."""
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.empty_cache = lambda: None


def _triton_trees(module) -> None:
    """Upstream's device-neutral Triton trees are chosen by the XPU flag. It also makes verification greedy."""
    module._is_xpu = True


def _eagle_utils(module) -> None:
    if hasattr(module, "_is_xpu"):
        _triton_trees(module)
        return
    # Trees exist in sgl_kernel only.
    module.sgl_build_tree_kernel_efficient = trees.build_tree
    module.verify_tree_greedy_func = trees.verify_tree_greedy_func


def _cache_locations(module) -> None:
    """A Triton launch stands behind a list of device flags; with none of them set the function returns None."""
    for flag in ("_is_xpu", "_is_musa"):
        if hasattr(module, flag):
            setattr(module, flag, True)
            return


def _rotary_embedding(module) -> None:
    """On a device that is not asked for its own opinion, vllm's CUDA op would be imported, though never called."""
    if not hasattr(module, "current_platform") and hasattr(module, "_is_mps"):
        module._is_mps = True  # read in that one condition


ADAPTATIONS = {
    "sglang.kernels.ops.speculative.spec_tree": _triton_trees,
    "sglang.srt.speculative.eagle_utils": _eagle_utils,
    "sglang.kernels.ops.speculative.cache_locs": _cache_locations,
    "sglang.srt.speculative.triton_ops.cache_locs": _cache_locations,
    "sglang.srt.speculative.eagle_info_v2": _cache_locations,
    "sglang.srt.layers.rotary_embedding.base": _rotary_embedding,
}
