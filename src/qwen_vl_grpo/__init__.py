"""Fine-tune Qwen-VL with GRPO from one YAML file, and find every run again by its run_id."""

__version__ = "0.1.0"
