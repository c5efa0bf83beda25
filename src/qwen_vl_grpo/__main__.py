"""`python -m qwen_vl_grpo` is `grpo`."""

from qwen_vl_grpo.cli import main

main()
