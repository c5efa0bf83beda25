"""What one training process holds on its card, phase by phase, in bytes.

Weights, adapter, optimizer, gradients and the engine's share are counted exactly. Activations, and what an engine and a
driver hold beside their weights, are estimates: the constants below, in capitals. `benchmarks/activations.py` counts the
activations of real models, and docs/planning.md holds the sums against runs.

One process a card (spreading.py: one of several), and no fragmentation. The optimizer is
AdamW; the states of another one are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from qwen_vl_grpo.config import RunConfig, launched
from qwen_vl_grpo.shapes import Shapes

GIB = 2**30

CONTEXT = int(0.6 * GIB)
"""The driver's context and the libraries' kernels and workspaces."""
ENGINE_ASLEEP = int(0.5 * GIB)
"""What stays of a sleeping engine: captured graphs and tables (docs/rollouts.md measured 0.3)."""
ENGINE_AWAKE = int(1.5 * GIB)
"""What an engine that generates takes beyond its share."""
ENGINE_WORKSPACE = int(1.0 * GIB)
"""What the engine keeps of its share for a forward pass; the rest is weights and KV cache."""
TOKEN_TILE, VOCABULARY_TILE = 4096, 32768
"""TRL 1.16 projects the head in tiles of so many tokens and entries, so full logits never exist."""
GENERATED_LOGITS = 12
"""Bytes a sequence and vocabulary entry while transformers samples a token: logits in float32, probabilities, a sorted copy."""

LAYER: dict[tuple[str, str], dict[str, tuple[float, float, float, float]]] = {
    ("older", "adapter"): {
        "kept": (24.5, 0.0, 4.5, 8.5), "recomputed": (28.5, 0.0, 4.5, 14.5),
        "extra": (12.6, 0.0, 0.0, 5.2), "forward": (13.3, 0.0, 0.5, 7.9),
    },
    ("older", "full"): {
        "kept": (20.5, 0.0, 4.5, 8.5), "recomputed": (15.2, 0.0, 0.7, 11.7),
        "extra": (15.9, 0.0, 0.0, 0.0), "forward": (9.3, 0.0, 0.5, 5.9),
    },
    ("qwen3_vl", "adapter"): {
        "kept": (18.3, 10.3, 8.5, 8.5), "recomputed": (22.3, 10.3, 8.5, 14.5),
        "extra": (13.5, 0.0, 0.0, 5.4), "forward": (12.2, 1.2, 0.4, 7.9),
    },
    ("qwen3_vl", "full"): {
        "kept": (16.3, 10.3, 10.4, 8.5), "recomputed": (13.5, 4.3, 9.5, 12.3),
        "extra": (16.1, 0.1, 1.5, 0.0), "forward": (6.8, 4.9, 0.0, 5.5),
    },
}  # fmt: skip
"""Bytes a token for one unit of the (hidden, query, key-value, MLP) widths: what a language layer keeps for the backward pass, what
the one layer that is being recomputed under checkpointing holds, what the backward pass adds to kept layers, and what a layer holds
in a forward pass without gradients. In the older families the query is as wide as the hidden state."""
TOKEN_ENDS = 8
"""Bytes a token and unit of the hidden width outside the layers: embeddings, last norm, head's input."""
TOWER = {
    "qwen2_vl": {"kept": (22.0, 4.0), "recomputed": (20.0, 10.0)},
    "qwen2_5_vl": {"kept": (28.0, 8.0), "recomputed": (27.6, 13.9)},
    "qwen3_vl": {"kept": (22.0, 4.0), "recomputed": (20.0, 10.0)},
}
"""The same for a patch in the vision tower: (hidden, MLP) widths."""
PATCH_ENDS, PATCH_FORWARD = 13, 40
"""Bytes a patch and unit of the tower's width: merger and embedding in the backward pass; all of it in a forward pass."""
FLOAT32_MORE = 1.15
"""Activations of float32 weights against those of bfloat16, both under bfloat16 autocast; checkpoints double."""


@dataclass(frozen=True)
class Prompt:
    """The longest prompt: tokens of text, and pictures of the config's max_pixels."""

    text: int = 256
    pictures: int = 1
    picture_tokens: int | None = None
    """Tokens of a picture where they are known; none takes those of max_pixels."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one process that do not depend on the card; `sequence` is a prompt and its completion in tokens."""

    sequences: int
    prompt_tokens: int
    sequence: int
    completions: int
    loaded: int
    """The policy's weights until training begins; `weights` from then on."""
    weights: int
    adapter: int
    reference: int
    optimizer: int
    gradients: int
    pictures: int
    score: int
    backward: int
    logits: int
    """The head's part of `score` and `backward`."""
    generation: int
    evaluation: int
    """As `generation`, for the held-out rows; 0 where nothing is held out or an engine answers."""
    engine_weights: int
    kv_token: int
    engine_context: int
    splitting: int = 0
    """The policy while the trainer splits what each card has loaded; 0 where nothing is split or it is loaded in parts."""

    @property
    def at_start(self) -> int:
        """Resident before the first step, when the engine starts."""
        return self.loaded + self.reference + self.adapter

    @property
    def resident(self) -> int:
        """Resident from the first step on, whatever the phase."""
        return self.weights + self.reference + self.adapter + self.optimizer


def measure(config: RunConfig, shapes: Shapes, prompt: Prompt | None = None) -> Footprint:
    """Count a config's process; weights are bfloat16 unless the config says float32, as on a GPU."""
    prompt, lora = prompt or Prompt(), config.lora
    width = 4 if config.dtype == "float32" else 2
    base, learning = shapes.base_bytes(lora, width), shapes.learning(lora)
    width_learning = learning_width(config)
    picture_tokens = prompt.picture_tokens if prompt.picture_tokens is not None else shapes.picture_tokens(config.data.max_pixels)
    prompt_tokens = prompt.text + prompt.pictures * picture_tokens
    if config.vllm_max_model_length is not None:  # longer prompts are refused or dropped
        prompt_tokens = min(prompt_tokens, max(1, config.vllm_max_model_length - config.max_completion_length))
    sequence = prompt_tokens + config.max_completion_length
    patches = prompt.pictures * picture_tokens * shapes.merge**2
    completions = _completions_at_once(config)
    kv_width = 1 if "fp8" in str(config.engine.get("kv_cache_dtype")) else width
    kv_token = 2 * shapes.layers * shapes.key_value * kv_width
    tokens, seen = config.batch_size * sequence, config.batch_size * patches
    asked = {"rollouts": 0 if config.use_vllm else completions}
    asked["evaluation"] = config.evaluation.batch_size if config.evaluation.part and not config.use_vllm else 0
    generation = {
        name: _generation(config, shapes, together, prompt_tokens, patches, kv_token) if together else 0
        for name, together in asked.items()
    }  # fmt: skip
    return Footprint(
        sequences=config.batch_size,
        prompt_tokens=prompt_tokens,
        sequence=sequence,
        completions=completions,
        loaded=base,
        weights=base,
        adapter=learning * width_learning if lora.enabled else 0,
        reference=base if config.beta and not lora.enabled else 0,
        optimizer=states(config, learning, width_learning),
        gradients=learning * width_learning,
        pictures=completions * patches * shapes.patch_values * 4,
        score=scoring(config, shapes, tokens, seen),
        backward=backward(config, shapes, tokens, seen),
        logits=round(_head(config, shapes, learns=not lora.enabled and bool(lora.language)) * _wider(config)),
        generation=generation["rollouts"],
        evaluation=generation["evaluation"],
        engine_weights=shapes.total() * width if has_engine(config) else 0,  # whole, beside a 4-bit base, too
        kv_token=kv_token,
        engine_context=config.vllm_max_model_length or shapes.context,
    )


def phases(footprint: Footprint, config: RunConfig, card: float) -> dict[str, float]:
    """Phase -> bytes in use on a card of so many bytes."""
    share = config.vllm_gpu_memory_utilization * card if has_engine(config) else 0.0
    beside = ENGINE_AWAKE if has_engine(config) else 0
    idle = min(beside, ENGINE_ASLEEP) if config.vllm_enable_sleep_mode else share + beside
    resident = CONTEXT + footprint.resident
    learned = resident + idle + footprint.pictures + footprint.gradients
    split = {"split": CONTEXT + footprint.reference + footprint.splitting + idle} if footprint.splitting else {}
    evaluated = {"evaluate": resident + share + beside + footprint.evaluation} if config.evaluation.part else {}
    return {
        "load": CONTEXT + footprint.at_start,
        "start": CONTEXT + footprint.at_start + share,
        **split,
        "generate": resident + share + beside + footprint.generation,
        "score": resident + idle + footprint.pictures + footprint.score,
        "backward": learned + footprint.backward,
        "optimizer": learned,
        **evaluated,
        "save": resident + idle,
    }


def torch_peak(footprint: Footprint, config: RunConfig, card: float) -> float:
    """What torch.cuda.max_memory_allocated reports at the end: it counts the engine's share even while the engine sleeps."""
    share = config.vllm_gpu_memory_utilization * card if has_engine(config) else 0.0
    learning = footprint.pictures + max(footprint.gradients + footprint.backward, footprint.score)
    trained = footprint.resident + max(learning, footprint.generation, footprint.evaluation)
    return share + max(trained, footprint.reference + footprint.splitting)


def kv_tokens(footprint: Footprint, config: RunConfig, card: float) -> int:
    """Tokens of KV cache in the engine's share of a card; below the engine's context vLLM does not start."""
    share = config.vllm_gpu_memory_utilization * card
    return max(0, int(share - footprint.engine_weights - ENGINE_WORKSPACE)) // footprint.kv_token


def has_engine(config: RunConfig) -> bool:
    """Whether a vLLM engine lives in the trainer's process."""
    return config.use_vllm and config.vllm_mode == "colocate"


def states(config: RunConfig, learning: int, width: int) -> int:
    """AdamW's two states of so many weights that learn, of `width` bytes each."""
    optimizer = str(config.trl.get("optim", "adamw"))
    return 0 if "adamw" not in optimizer else 2 * learning * (1 if "8bit" in optimizer else width)


def learning_width(config: RunConfig) -> int:
    """Bytes of a weight that learns: PEFT's adapters are float32 and TRL makes QLoRA's bfloat16; full fine-tuning has no second copy."""
    if config.lora.enabled:
        return 2 if config.lora.quantization else 4
    return 4 if config.dtype == "float32" else 2


def _completions_at_once(config: RunConfig) -> int:
    if "generation_batch_size" in config.trl:
        return config.trl["generation_batch_size"] // launched()
    return config.batch_size * config.trl.get("steps_per_generation", config.gradient_accumulation_steps)


def scoring(config: RunConfig, shapes: Shapes, tokens: int, patches: int) -> int:
    """Estimate what a forward pass without gradients holds over so many tokens and patches."""
    layer = tokens * _widths(shapes, config, "forward")
    tower = patches * PATCH_FORWARD * shapes.vision_hidden
    return round(max(layer, tower, _head(config, shapes, learns=False)) * _wider(config)) + _dequantized(config, shapes)


def backward(config: RunConfig, shapes: Shapes, tokens: int, patches: int) -> int:
    """Estimate the most that a micro-step's activations hold, from the forward pass to the end of the backward pass."""
    lora, wider = config.lora, _wider(config)
    width, recomputed = 4 if config.dtype == "float32" else 2, recomputed_layers(config, shapes)
    checkpoints = tokens * width * shapes.hidden * recomputed
    layers = tokens * _widths(shapes, config, "kept") * (shapes.layers - recomputed) * wider
    if not lora.vision or not shapes.vision_depth:  # policy.recompute keeps a frozen tower out of the backward pass
        tower_kept = tower_working = 0.0
    else:
        tower = TOWER[shapes.family]
        tower_kept = patches * _tower_widths(shapes, tower["kept"]) * shapes.vision_depth * wider
        tower_working = 0.0
        if recomputed:
            tower_kept = patches * width * shapes.vision_hidden * shapes.vision_depth
            tower_working = patches * _tower_widths(shapes, tower["recomputed"])
    patch_ends = 0 if lora.parts in (("language",), ("head",)) else patches * PATCH_ENDS * shapes.vision_hidden
    ends = tokens * TOKEN_ENDS * shapes.hidden + patch_ends
    head = _head(config, shapes, learns=not lora.enabled and bool(lora.language))
    # the backward pass begins at the last layer, which is kept, and comes to the recomputed ones when what was kept is gone
    begins = layers + max(tokens * _widths(shapes, config, "extra") if layers else 0.0, head) * wider
    comes = max(tokens * _widths(shapes, config, "recomputed") if recomputed else 0.0, tower_working) * wider
    return round(checkpoints + tower_kept + max(begins, comes) + ends * wider) + casts(config, shapes) + _dequantized(config, shapes)


def casts(config: RunConfig, shapes: Shapes) -> int:
    """The bfloat16 copies that autocast keeps of float32 weights that learn."""
    return 2 * shapes.learning(config.lora) if learning_width(config) == 4 else 0


def recomputed_layers(config: RunConfig, shapes: Shapes) -> int:
    """Language layers that a config recomputes; `auto` counts as all of them until planning.settled has chosen."""
    chosen = config.gradient_checkpointing
    if isinstance(chosen, bool) or chosen == "auto":
        return shapes.layers if chosen else 0
    return min(chosen, shapes.layers)


def _generation(config: RunConfig, shapes: Shapes, together: int, prompt_tokens: int, patches: int, kv_token: int) -> int:
    """transformers' own generation: the cache of all sequences at once, the prompts' forward pass, and the last logits."""
    cache = together * (prompt_tokens + config.max_completion_length) * kv_token
    prefill = scoring(config, shapes, together * prompt_tokens, together * patches)
    return cache + prefill + together * shapes.vocabulary * GENERATED_LOGITS


def _head(config: RunConfig, shapes: Shapes, learns: bool) -> int:
    tokens = config.batch_size * config.max_completion_length
    tile = 2 * min(tokens, TOKEN_TILE) * min(shapes.vocabulary, VOCABULARY_TILE)
    weight_gradient = (4 + 2) * shapes.vocabulary * shapes.hidden if learns else 0  # accumulated in float32, then cast
    return tile + tokens * shapes.hidden * (2 + 4) + weight_gradient


def _widths(shapes: Shapes, config: RunConfig, what: str) -> float:
    table = LAYER["qwen3_vl" if shapes.family.startswith("qwen3") else "older", "adapter" if config.lora.enabled else "full"]
    widths = (shapes.hidden, shapes.query, shapes.key_value, shapes.mlp)
    return sum(constant * unit for constant, unit in zip(table[what], widths, strict=True))


def _tower_widths(shapes: Shapes, constants: tuple[float, float]) -> float:
    return constants[0] * shapes.vision_hidden + constants[1] * shapes.vision_mlp


def _dequantized(config: RunConfig, shapes: Shapes) -> int:
    """A 4-bit layer is unpacked while it is used."""
    return 2 * max(linear.matrix for linear in shapes.linears if linear.part == "language") if config.lora.quantization else 0


def _wider(config: RunConfig) -> float:
    return FLOAT32_MORE if config.dtype == "float32" else 1.0
