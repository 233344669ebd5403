"""What the installed torch can do, as one line of JSON.

``schedc doctor`` runs this file as a process of its own, because a broken torch may crash.
"""

from __future__ import annotations

import json
from typing import Any


def probe() -> dict[str, Any]:
    """Versions and devices. Raises what importing torch raises."""
    import torch
    import torch.distributed as dist

    distributed = dist.is_available()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": [],
        "gloo": distributed and dist.is_gloo_available(),
        "nccl": None,
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            found["gpus"].append(
                {"name": gpu.name, "bytes": gpu.total_memory, "capability": [gpu.major, gpu.minor]}
            )
        if distributed and dist.is_nccl_available():
            from torch.cuda import nccl

            found["nccl"] = ".".join(map(str, nccl.version()))
    elif distributed and dist.is_nccl_available():
        found["nccl"] = "built in"
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
