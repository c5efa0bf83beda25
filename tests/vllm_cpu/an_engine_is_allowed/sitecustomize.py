"""A command line that lets this CPU run an engine, in every process that has this folder on its path; all else is the product."""

from qwen_vl_grpo import checks, hardware
from qwen_vl_grpo.findings import Finding

hardware.require = lambda config, machine: None
checks.gpu = lambda config, machine, root=None: Finding("accelerator", "ok", "the lane's CPU")
