"""How the completions of a step are laid out over however many devices a launch has."""

from __future__ import annotations

from qwen_vl_grpo.config import RunConfig, check, launched
from qwen_vl_grpo.errors import ConfigError


def fitted(config: RunConfig, devices: int | None = None) -> RunConfig:
    """The config with the batch and the accumulation that give `prompts_per_step` on so many devices, this launch's if none are given.

    `batch_size` stays as large as it may be, and no larger than it was. Raises ConfigError with the nearest numbers that fit.
    """
    if config.prompts_per_step is None:
        return config
    devices = devices or launched()
    completions = config.prompts_per_step * config.num_generations
    if completions % devices:
        fit = [count for count in range(1, completions + 1) if completions % count == 0]
        near = [max(count for count in fit if count < devices), *[count for count in fit if count > devices][:1]]
        step = next(more for more in range(1, devices + 1) if more * config.num_generations % devices == 0)
        below = config.prompts_per_step // step * step
        raise ConfigError(
            f"prompts_per_step {config.prompts_per_step}: its {completions} completions do not part into {devices} devices; they do into "
            f"{' or '.join(map(str, near))}, and on {devices} devices {' or '.join(str(n) for n in (below, below + step) if n)} prompts fit"
        )
    each = completions // devices
    size = max(count for count in range(1, min(config.batch_size, each) + 1) if each % count == 0)
    return check(config.model_dump(mode="json") | {"batch_size": size, "gradient_accumulation_steps": each // size})
