"""Let vLLM keep linear weights as they were loaded, in whatever process imports this: the CPU's packed copies cannot be replaced.

vLLM packs linear weights for the CPU after loading and drops the originals, so nothing could be synced into them. A server's
worker imports this as its extension; all else is the product.
"""

import sys

import torch
from vllm.model_executor.layers import utils as vllm_layers


def keep_weights(layer, remove_weight):
    layer.cpu_linear = torch.nn.functional.linear


for module in [vllm_layers, *sys.modules.values()]:
    if getattr(module, "dispatch_cpu_unquantized_gemm", None) is not None:
        module.dispatch_cpu_unquantized_gemm = keep_weights


class PlainWeights:
    """What `--worker-extension-cls` asks for; it adds nothing to the worker."""
