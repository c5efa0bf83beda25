"""The policy: a Qwen-VL model with its processor, and which of its weights learn."""

from __future__ import annotations

import importlib.util
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from qwen_vl_grpo import hub, positions, processors
from qwen_vl_grpo.config import RunConfig
from qwen_vl_grpo.errors import PolicyError, briefly
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.sections import LoraSection

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TEXT_FAMILIES = ("qwen2", "qwen3")
"""Those that read text alone, for tasks without pictures; Qwen2.5 is of the family qwen2."""
HEAD = "lm_head.weight"
VISION_LINEARS = "qkv|proj|gate_proj|up_proj|down_proj|fc1|fc2|linear_fc1|linear_fc2"


def load_processor(config: RunConfig, name: str | None = None) -> Any:
    """Load the processor with left padding and the config's pixel limits, or a text-only model's tokenizer; raises PolicyError.

    Left padding is not a taste: with right padding the vision types fall on padded places and the gradients are wrong
    (trl#5785).
    """
    source = name or config.model_name
    revision = config.model_revision if source == config.model_name else None
    try:
        text_only = not (Path(source) / "processor_config.json").is_file() and _family(config, source) in TEXT_FAMILIES
        processor = (AutoTokenizer if text_only else AutoProcessor).from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        raise PolicyError(f"model_name {source}: its processor cannot be loaded ({_reason(error, source)})") from None
    if not text_only and not processors.sees(processor):
        raise PolicyError(f"model_name {source}: has no picture processor; use a Qwen-VL checkpoint")
    if not processor.chat_template:
        raise PolicyError(f"model_name {source}: has no chat template, so nothing can be asked; take an -Instruct checkpoint")
    processors.tokenizer(processor).padding_side = "left"
    if text_only:
        return processor
    processor.image_processor.size = {"shortest_edge": config.data.min_pixels, "longest_edge": config.data.max_pixels}
    return processor


def load_model(config: RunConfig, name: str | None = None) -> Any:
    """Load the model in the config's dtype and attention; raises PolicyError with what to do.

    Of its generation_config only the ids are kept: `generate` fills in whatever a caller leaves out, and a rollout or a score
    would follow the checkpoint's penalty, beams or cutoffs.
    """
    source = name or config.model_name
    revision = config.model_revision if source == config.model_name else None
    check(config, source)
    _quiet()
    positions.correct()
    try:
        model = auto_class(AutoConfig.from_pretrained(source, revision=revision)).from_pretrained(
            source,
            revision=revision,
            dtype=weight_dtype(config),
            attn_implementation=attention(config),
            quantization_config=quantization(config),
            device_map={"": torch.cuda.current_device()} if torch.cuda.is_available() else None,
        )
    except (OSError, ValueError, ImportError) as error:
        raise PolicyError(f"model_name {source}: cannot be loaded ({_reason(error, source)})") from None
    own = model.generation_config
    model.generation_config = GenerationConfig(bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id)
    return model


def check(config: RunConfig, name: str | None = None) -> None:
    """Refuse what can be refused before weights are read; raises PolicyError."""
    source = name or config.model_name
    if not Path(source).is_dir() and (source.count("/") != 1 or source.startswith((".", "/"))):
        raise PolicyError(
            f"model_name {source}: there is no such folder here; name a folder, or a Hub id such as Qwen/Qwen2.5-VL-7B-Instruct"
        )
    try:
        family = _family(config, source)
    except (OSError, ValueError) as error:
        raise PolicyError(f"model_name {source}: cannot be loaded ({_reason(error, source)})") from None
    if family not in (*FAMILIES, *TEXT_FAMILIES):
        known = ", ".join((*FAMILIES, *TEXT_FAMILIES))
        raise PolicyError(f"model_name {source}: is of the family {family}; the families that learn here are {known}")
    if family in TEXT_FAMILIES and config.lora.parts not in (("language",), ("head",)):
        key = next((name for name in config.lora.parts if name != "language"), "language")
        raise PolicyError(f"lora.{key}: {source} is a text-only model and has no vision tower; let its language learn alone")
    attention(config)
    quantization(config)


def auto_class(described: Any) -> Any:
    """The class that loads a model of this config: one that takes pictures, or a language model alone."""
    return AutoModelForCausalLM if described.model_type in TEXT_FAMILIES else AutoModelForImageTextToText


def _family(config: RunConfig, source: str) -> str:
    """Family of the model in `source`, or of the base that the adapter in that folder is for; raises OSError or ValueError."""
    if (Path(source) / "adapter_config.json").is_file():
        source = config.model_name
    return AutoConfig.from_pretrained(source, revision=config.model_revision if source == config.model_name else None).model_type


def encode(processor: Any, samples: Sequence[Sample]) -> Any:
    """Render and tokenize samples with their pictures and clips, padded on the left; raises DataError if some would not be seen."""
    images, videos = [list(sample.images) for sample in samples], [list(sample.videos) for sample in samples]
    each = zip(samples, images, videos, strict=True)
    texts = [processors.prompt_text(processor, sample.prompt, seen, watched) for sample, seen, watched in each]
    return processors.encode(processor, texts, images, videos)


def unpadded(encoded: Any) -> list[list[int]]:
    """The token ids of each prompt that `encode` padded."""
    return [row[kept.bool()].tolist() for row, kept in zip(encoded["input_ids"], encoded["attention_mask"], strict=True)]


def weight_dtype(config: RunConfig) -> torch.dtype:
    """bfloat16 on a GPU and float32 on a CPU unless the config says otherwise; transformers alone would take float32."""
    if config.dtype == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return getattr(torch, config.dtype)


def attention(config: RunConfig) -> str:
    """The attention kernel to ask for; raises PolicyError if the one asked for is not installed."""
    installed = importlib.util.find_spec("flash_attn") is not None and torch.cuda.is_available()
    if config.attn_implementation == "flash_attention_2" and not installed:
        raise PolicyError("attn_implementation: flash_attention_2 needs a GPU and the flash-attn package; take auto or sdpa")
    if config.attn_implementation == "auto":
        return "flash_attention_2" if installed else "sdpa"
    return config.attn_implementation


def quantization(config: RunConfig) -> Any:
    """The 4-bit settings of QLoRA (NF4 with double quantisation, arXiv 2305.14314), or None; the vision tower stays as it is.

    The 4-bit layers multiply in the dtype of the others, as the engine does.
    """
    if config.lora.quantization is None:
        return None
    if not config.lora.enabled:
        raise PolicyError("lora.quantization: a 4-bit base cannot be fine-tuned whole; set lora.enabled: true or remove the quantisation")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise PolicyError("lora.quantization: 4bit needs the bitsandbytes package; install it, or remove lora.quantization")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=weight_dtype(config),
        llm_int8_skip_modules=["model.visual", "lm_head"],
    )


def adapter(lora: LoraSection) -> LoraConfig | None:
    """The LoRA settings, or None for full fine-tuning.

    Modules are matched with their place: Qwen2.5-VL's vision MLP has layers named like the language model's, and plain suffixes
    would train both. The language model's lie in `layers`, whether it stands alone or not, and the tower's in `blocks`.
    """
    if not lora.enabled:
        return None
    layers = {
        "language": rf"layers\.\d+\.(?:.*\.)?(?:{'|'.join(lora.target_modules)})",
        "vision": rf"visual\.blocks\.(?:.*\.)?(?:{VISION_LINEARS})",
        "merger": rf"visual\.(?:merger|deepstack_merger_list)\.(?:.*\.)?(?:{VISION_LINEARS}|mlp\.0|mlp\.2)",
    }
    pattern = "|".join(layers[name] for name in lora.parts)
    return LoraConfig(r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=f".*(?:{pattern})", task_type="CAUSAL_LM")


def freeze(model: Any, lora: LoraSection) -> None:
    """In full fine-tuning, keep the parts as they are that the config does not train.

    Each weight is frozen by itself: `module.requires_grad = False` only sets an attribute, and an untied head would go on learning.
    Raises PolicyError if the head is to learn alone and is the embeddings as well.
    """
    if "head" in lora.parts and HEAD not in dict(model.named_parameters()):
        raise PolicyError("lora.language: head would train the embeddings, which are this model's head; take a model whose head is untied")
    if not lora.enabled:
        for name, weight in model.named_parameters():
            if part(name) not in lora.parts and not (name == HEAD and "head" in lora.parts):
                weight.requires_grad_(False)


def trainable_parts(model: Any) -> dict[str, tuple[int, int]]:
    """Part of the model -> (weights that learn, weights in all)."""
    learning: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        total[part(name)] += weight.numel()
        learning[part(name)] += weight.numel() if weight.requires_grad else 0
    return {name: (learning[name], total[name]) for name in total}


def table(parts: Mapping[str, tuple[int, int]]) -> str:
    """What learns, as lines for a person: a part of the model each, and their sum."""
    rows = [*parts.items(), ("all", (sum(learning for learning, _ in parts.values()), sum(total for _, total in parts.values())))]
    lines = [f"{name:8}  {learning:>15,}  {total:>15,}  {learning / total:>6.1%}" for name, (learning, total) in rows]
    return "\n".join([f"{'part':8}  {'weights learn':>15}  {'of':>15}  {'share':>6}", *lines])


def forbid(model: Any, tokens: Sequence[int]) -> None:
    """Give the head a bias under which `tokens` have no probability, so that trainer and sampler score one distribution; none, no bias.

    The bias is a buffer that is not saved: the checkpoint and the weights that the engine gets stay as they are.
    """
    if not tokens:
        return
    head = model.get_output_embeddings()
    bias = torch.zeros(head.out_features, dtype=torch.float32 if head.weight.dtype.itemsize == 1 else head.weight.dtype)
    bias[list(tokens)] = -100.0
    del head._parameters["bias"]
    head.register_buffer("bias", bias.to(head.weight.device), persistent=False)


def recompute(model: Any, layers: int) -> None:
    """Make gradient checkpointing recompute the first `layers` of the language model alone, and nothing that is frozen.

    transformers also marks the output of every embedding as learning, the vision tower's too, and a frozen tower is then
    recomputed and differentiated at every step for nothing. Checkpoints that are not reentrant need no such mark. The first
    layers are the ones to recompute: by the time the backward pass reaches them, what the later ones kept is gone.
    """
    published = partial(type(model).gradient_checkpointing_enable, model)  # the class's, so that another number may be set later
    keep = list(model.get_decoder().layers)[layers:]

    def enable(gradient_checkpointing_kwargs: Any = None, **named: Any) -> None:
        published(gradient_checkpointing_kwargs, **named)
        for layer in keep:
            layer.gradient_checkpointing = False

    model.gradient_checkpointing_enable = enable
    model.enable_input_require_grads = lambda: None


def dtype_of(model: Any) -> torch.dtype:
    """The dtype of the policy's weights, adapters aside."""
    return next(weight.dtype for name, weight in model.named_parameters() if "lora_" not in name and weight.is_floating_point())


def part(name: str) -> str:
    """Which part of the model a parameter belongs to: vision, merger or language."""
    if "visual." not in name:
        return "language"
    return "merger" if "merger" in name else "vision"


def _quiet() -> None:
    """Turn transformers' bar off, which takes seconds, unless TRANSFORMERS_VERBOSITY asks for more; downloads keep theirs."""
    if transformers_logging.get_verbosity() >= logging.ERROR:
        transformers_logging.disable_progress_bar()
        hub.show_bars()


def _reason(error: Exception, source: str) -> str:
    return hub.denied(error, source) or briefly(error)
