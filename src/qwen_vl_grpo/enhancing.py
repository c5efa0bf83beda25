"""A model that rewrites prompts, without a run: the documented QwenWrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig

from qwen_vl_grpo import enhancement, placement, weights
from qwen_vl_grpo.errors import DataError, PolicyError
from qwen_vl_grpo.tasks.prompt_enhancement import SYSTEM_PROMPT


class QwenWrapper:
    """A Qwen-VL or a text-only Qwen that rewrites prompts for a text-to-image model; loads when it is made.

    >>> QwenWrapper(model_name="Qwen/Qwen2-VL-7B-Instruct").enhance_prompt("a cat")["enhanced_prompt"]

    Temperature 0 is greedy. Raises PolicyError if the model cannot be loaded, HardwareError for a device that is not there.
    """

    def __init__(
        self,
        model_name: str = "Qwen/Qwen2-VL-7B-Instruct",
        device: str = "auto",
        max_new_tokens: int = 100,
        temperature: float = 0.7,
        system_prompt: str = SYSTEM_PROMPT,
    ):
        self.model_name, self.max_new_tokens, self.temperature, self.system_prompt = model_name, max_new_tokens, temperature, system_prompt
        self._device = placement.device("policy", device)
        weights.check("model_name", model_name, "config.json", None, PolicyError)
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        with weights.loading("model_name", model_name, PolicyError):
            sees = hasattr(AutoConfig.from_pretrained(model_name), "vision_config")
            kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
            model: Any = kind.from_pretrained(model_name, dtype=dtype)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model_name, padding_side="left")
        own = model.generation_config  # Qwen2-VL's samples from the single likeliest token, so only its ids are kept
        ids = {"eos_token_id": own.eos_token_id or self._tokenizer.eos_token_id, "pad_token_id": self._tokenizer.pad_token_id}
        model.generation_config = GenerationConfig(**ids)
        self._model = model.to(self._device).eval()

    def enhance_prompt(self, prompt: str) -> dict[str, Any]:
        """Rewrite one prompt; see enhance_prompts_batch."""
        return self.enhance_prompts_batch([prompt])[0]

    def enhance_prompts_batch(self, prompts: Sequence[str]) -> list[dict[str, Any]]:
        """Rewrite prompts together: original_prompt, enhanced_prompt, completion (as the model wrote it) and quality (0 to 5) of each.

        Raises DataError for a prompt that is empty.
        """
        if not all(isinstance(prompt, str) and prompt.strip() for prompt in prompts):
            raise DataError("a prompt is text, and not empty")
        if not prompts:
            return []
        chats = [[{"role": "system", "content": self.system_prompt}, {"role": "user", "content": prompt}] for prompt in prompts]
        texts = self._tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        asked = self._tokenizer(texts, padding=True, return_tensors="pt").to(self._device)
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0} if self.temperature else {"do_sample": False}
        with torch.inference_mode():
            ids = self._model.generate(**asked, max_new_tokens=self.max_new_tokens, **sampling)[:, asked["input_ids"].shape[1] :]
        completions = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [_rewritten(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]


def _rewritten(prompt: str, completion: str) -> dict[str, Any]:
    rewritten = enhancement.enhanced(completion)
    return {
        "original_prompt": prompt,
        "enhanced_prompt": rewritten,
        "completion": completion,
        "quality": enhancement.quality(prompt, rewritten),
    }
