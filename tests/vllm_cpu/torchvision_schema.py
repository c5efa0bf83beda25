"""Lets PyPI's torchvision (a CUDA build) be imported beside the CPU build of torch that vLLM's CPU engine needs.

`make test-vllm` puts this file into the lane's own environment, where every process imports it at start; the product never
sees it. torchvision registers fake kernels for operators that only its CUDA library defines, so they are declared first.
"""

import importlib.abc
import sys


class DeclareFirst(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            DeclareFirst.kept = self.library
        return None


sys.meta_path.insert(0, DeclareFirst())
