# SPDX-License-Identifier: Apache-2.0
"""Ray: what one actor returns goes to another by gx. For torch: gx.ray.register(torch.Tensor)."""
from typing import Any

import numpy
import ray

import gx.ray

gx.ray.register(numpy.ndarray)  # before classes that name it


@ray.remote
class Trainer:
    @ray.method(tensor_transport="gx")
    def weights(self, step: int) -> dict[str, Any]:
        return {"step": step, "layers": [numpy.full((256, 1024), step + i, numpy.float32) for i in range(8)]}


@ray.remote(enable_tensor_transport=True)
class Sampler:
    def take(self, weights: dict[str, Any]) -> tuple[int, float]:
        return weights["step"], float(sum(layer.mean() for layer in weights["layers"]))


ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
trainer, sampler = Trainer.remote(), Sampler.remote()
for step in range(3):
    print(ray.get(sampler.take.remote(trainer.weights.remote(step))))
ray.shutdown()
