"""What a piece of code asks of torch: how many operations, and how many bytes of new tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Costs(TorchDispatchMode):
    """Counts, inside a ``with`` block, the operations and the bytes that each of them allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.allocated: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        given = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                self.allocated.append(tensor.untyped_storage().nbytes())
        return out
