"""The platform: torch's `cpu` device, declared out-of-tree.

Being out-of-tree is what keeps SGLang's `is_cpu()` and `is_cuda()` both false, so that the device-neutral code runs.
Hooks that a release does not know are simply never called there.
"""

import gc
import importlib
import platform as host

import psutil
import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class ReferencePlatform(SRTPlatform):
    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    supported_quantization = ()

    # The device

    def get_device(self, device_id=0):
        return torch.device("cpu")

    def set_device(self, device):
        pass

    def get_device_name(self, device_id=0):
        return f"reference ({host.machine()})"

    def get_device_uuid(self, device_id=0):
        return host.node() or "reference"

    def get_device_capability(self, device_id=0):
        return None

    def get_device_total_memory(self, device_id=0):
        return psutil.virtual_memory().total

    def get_current_memory_usage(self, device=None):
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id=0):
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def is_pin_memory_available(self, device=None):
        return False

    def empty_cache(self):
        gc.collect()

    def synchronize(self):
        pass

    def get_torch_distributed_backend_str(self):
        return "gloo"

    # Attention and speculation

    def get_default_attention_backend(self):
        return "triton"

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "triton"

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        # The allow-lists under test are SGLang's: an answer of False here would hide them.
        return True

    def support_cuda_graph(self):
        return False

    def support_piecewise_cuda_graph(self):
        return False

    def get_dispatch_key_name(self):
        return "native"

    # KV cache. Newer releases take None for "the in-tree class"; in older ones the base class raises, and here the
    # in-tree classes are named.

    def get_paged_allocator_cls(self):
        try:
            return super().get_paged_allocator_cls()
        except NotImplementedError:
            return _allocator

    def get_kv_pool_cls(self, *, kind):
        return None

    def get_mha_kv_pool_cls(self):
        return _mha_pool()

    def get_mla_kv_pool_cls(self):
        return _memory_pool().MLATokenToKVPool

    def get_dsa_kv_pool_cls(self):
        return _memory_pool().DSATokenToKVPool

    def get_nsa_kv_pool_cls(self):
        return _memory_pool().NSATokenToKVPool


def _memory_pool():
    return importlib.import_module("sglang.srt.mem_cache.memory_pool")


def _mha_pool():
    """The in-tree pool; where an out-of-tree one is built without KV copy (which draft trees need), set it up late."""
    base = _memory_pool().MHATokenToKVPool

    class MHATokenToKVPool(base):
        def move_kv_cache(self, tgt_loc, src_loc):
            if getattr(self, "_kv_copy_config", True) is None:
                self._init_kv_copy_and_warmup()
            return super().move_kv_cache(tgt_loc, src_loc)

    return MHATokenToKVPool


def _allocator(size, *, page_size, dtype, device, kvcache, need_sort, **_):
    """Called like the class it stands for: by token at page size 1, by page otherwise."""
    allocator = importlib.import_module("sglang.srt.mem_cache.allocator")
    if page_size == 1:
        return allocator.TokenToKVPoolAllocator(
            size, dtype=dtype, device=device, kvcache=kvcache, need_sort=need_sort
        )
    return allocator.PagedTokenToKVPoolAllocator(
        size, page_size=page_size, dtype=dtype, device=device, kvcache=kvcache, need_sort=need_sort
    )
