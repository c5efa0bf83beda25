"""The sections of a run whose completions are drawn and judged as pictures; config.py puts them beside the others.

The text under each field is its documentation: docs/configuration.md is generated from it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.sections import Section

ENDPOINT_MODEL = "gpt-4o-2024-11-20"
"""The judge of the published Complex-Edit figures."""
OPENAI = "https://api.openai.com/v1"
TOKEN_SIDE = 16
"""Pixels of a side of one token of Qwen-Image: 8 in a latent, two latents in a token."""
_QWEN: dict[str, Any] = {"steps": 50, "width": 1024, "height": 1024, "guidance_scale": 4.0, "negative_prompt": " ", "text_tokens": 1024}
DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen_image": _QWEN | {"model": "Qwen/Qwen-Image"},
    "qwen_image_edit": _QWEN | {"model": "Qwen/Qwen-Image-Edit"},
    "qwen_image_edit_plus": _QWEN | {"model": "Qwen/Qwen-Image-Edit-2509", "steps": 40},
}
"""Renderer -> what its published pages take, where a config says nothing and the defaults below are another's."""


class RendererSection(Section):
    name: str = "sd3"
    """What draws: `sd3` (Stable Diffusion 3), which reads the completion as text; `qwen_image`, `qwen_image_edit` or
    `qwen_image_edit_plus`, which see the policy's own states of it (docs/rendered_rewards.md) and have defaults of their own; or
    `path/to/module.py:function` for your own (a function that gets this section and returns an ImageGenerator)."""
    model: str = "stabilityai/stable-diffusion-3-medium-diffusers"
    """Its weights: Hub id or local folder. The others' are `Qwen/Qwen-Image`, `Qwen/Qwen-Image-Edit` and `Qwen/Qwen-Image-Edit-2509`."""
    revision: str | None = None
    """Hub revision of the weights. The cache of judgements is keyed by it as it is written, so pin a commit."""
    steps: int = Field(default=28, ge=1)
    """Denoising steps of a picture; 50 for Qwen-Image and Edit, 40 for Edit-Plus."""
    width: int = Field(default=512, ge=16, le=4096)
    """Pixels, unless a row has a `width` of its own; 1024 for the Qwen-Image family, which takes multiples of 16. The editing ones
    keep the shape of the picture that they edit, at `width` x `height` pixels in all."""
    height: int = Field(default=512, ge=16, le=4096)
    """Pixels, unless a row has a `height` of its own; likewise."""
    guidance_scale: float = Field(default=7.0, ge=0)
    """Classifier-free guidance; 1 or less turns it off and halves the work. 4 for the Qwen-Image family (their `true_cfg_scale`)."""
    negative_prompt: str = ""
    """What guidance leads away from; a blank for the Qwen-Image family."""
    t5: bool = True
    """Load SD3's T5 encoder (9.5 GB in 16 bits). Without it whatever stands beyond 77 CLIP tokens of a completion is not seen."""
    text_tokens: int = Field(default=256, ge=77, le=1024)
    """Tokens of a completion that are read: by SD3's T5 at most 512, by Qwen-Image 1024, which is its default. The editing ones
    read all that the policy's encoder hands them."""
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    """Of the weights; `auto` is bfloat16 on a GPU and float32 elsewhere."""
    batch_size: int = Field(default=4, ge=1)
    """Pictures drawn at once; halved for the rest of the run where memory runs out. Edit-Plus draws one at a time."""
    offload: Literal["none", "asleep", "model", "sequential"] = "none"
    """`asleep` keeps all weights in host memory but while pictures are drawn; `model` moves one part of the pipeline at a time to the
    card, `sequential` one layer at a time."""
    compile: bool = False
    """Compile the transformer with torch.compile: worth it for runs of hours."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_its_own(cls, given: Any) -> Any:
        return DEFAULTS.get(str(given.get("name")), {}) | given if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _what_it_can_draw(self) -> RendererSection:
        if self.name == "sd3" and self.text_tokens > 512:
            raise ValueError(f"text_tokens {self.text_tokens}: sd3's T5 reads at most 512")
        for side, pixels in (("width", self.width), ("height", self.height)):
            if self.name in DEFAULTS and pixels % TOKEN_SIDE:
                near = pixels // TOKEN_SIDE * TOKEN_SIDE
                raise ValueError(f"{side} {pixels}: {self.name} takes multiples of {TOKEN_SIDE}; take {near} or {near + TOKEN_SIDE}")
        return self


class JudgeSection(Section):
    name: str = "clip"
    """What scores a picture: `clip`, `complex_edit` (edits; alignment, quality, identity), `mmmg` (pictures that teach; what is seen of a
    knowledge graph), or `path/to/module.py:function` for your own (a function that gets this section and returns a Judge)."""
    model: str = "openai/clip-vit-base-patch32"
    """Its weights: Hub id or local folder. For a judge that is asked over HTTP the name that the endpoint knows, and
    `gpt-4o-2024-11-20` where you give none."""
    revision: str | None = None
    """Hub revision of the weights; a part of the cache's key, as it is written. For an endpoint, whatever tells its weights apart."""
    low: float = 0.15
    """The cosine that scores 0; one that is lower scores 0, too."""
    high: float = 0.35
    """The cosine that scores 1; one that is higher scores 1, too."""
    concurrency: int = Field(default=8, ge=1)
    """Calls of a judge at once, for a judge that answers several; CLIP takes one after the other."""
    attempts: int = Field(default=3, ge=1)
    """How often a question is put whose answer fails for a passing reason."""
    most_failures: float = Field(default=0.25, ge=0, lt=1)
    """The run stops when a larger share of a step's pictures could not be drawn or judged."""
    cache: str | None = None
    """File that keeps every judgement (SQLite, any number of processes and runs); none takes judgements.sqlite beside the index of runs."""
    replay: Literal["off", "use", "only"] = "use"
    """`use` draws and judges only what the cache does not hold; `only` draws and judges nothing, so that a recorded run needs neither
    renderer nor judge; `off` neither reads nor writes it."""
    base_url: str | None = Field(default=None, pattern="^https?://")
    """Where an endpoint answers, such as `http://127.0.0.1:8000/v1` (docs/judges.md); none takes OPENAI_BASE_URL, else OpenAI's own. It
    receives OPENAI_API_KEY. `clip` ignores this key and all that follow."""
    votes: int = Field(default=1, ge=1)
    """Answers to each question of an endpoint; their mean is the score, and their spread the judge's noise."""
    noise_gate: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """A group whose scores differ (by their standard deviation) by no more than so many times the judge's noise teaches nothing; 0 lets all
    teach. Needs several `votes`: with 3, and 8 completions, 1.63 stops 95% of groups that are noise alone (docs/judges_protocols.md)."""
    weights: dict[Literal["alignment", "quality", "identity"], float] = {"alignment": 0.6, "quality": 0.4}  # noqa: RUF012
    """How much each grade of `complex_edit` counts in its score, divided by their sum; one that is not named is only reported. Refused for
    `mmmg`, which has no grades, and so is `scoring`."""
    scoring: Literal["votes", "expected"] = "votes"
    """What `complex_edit` takes for a grade: the `votes` themselves, or the mean over all grades by the probability that the judge gives
    them (`expected`), which ties less. The endpoint must tell token probabilities (`logprobs`)."""
    region_counter: str | None = None
    """`path/to/module.py:function` that counts the regions of a picture for `mmmg`, as SAM 2.1 does for the benchmark (None where it
    cannot); with it readability and the MMMG-Score are reported."""
    image_side: int = Field(default=1024, ge=64)
    """Pixels of the longest side of a picture as it is sent; a larger one is shrunk."""
    image_format: Literal["png", "jpeg"] = "png"
    """How a picture is sent: `png` as it is, `jpeg` at quality 95 with about a fifth of the bytes."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds without an answer after which a request has failed."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Most requests in any minute, of all processes of the run together; none sets no limit."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most tokens in any minute, likewise."""
    breaker_failures: int = Field(default=10, ge=1)
    """After so many requests in a row without any answer all fail at once, for breaker_pause seconds; then one is let through."""
    breaker_pause: float = Field(default=30.0, gt=0)
    """Seconds that a judge which is down is left alone."""
    input_price: float = Field(default=0.0, ge=0)
    """Of a million tokens that are sent, in the currency of most_cost."""
    output_price: float = Field(default=0.0, ge=0)
    """Of a million tokens that are answered."""
    most_cost: float | None = Field(default=None, gt=0)
    """The run stops when its judge has cost this much; none sets no limit."""
    most_tokens: int | None = Field(default=None, ge=1)
    """The run stops when its judge has used this many tokens, sent and answered."""
    spending: str | None = None
    """File that keeps what was spent (JSON); none takes spending.json in the run's folder. What several runs name is a budget of all."""

    @property
    def remote(self) -> bool:
        """Whether it is a known judge that asks an endpoint."""
        return self.name != "clip" and ".py:" not in self.name

    @property
    def address(self) -> str:
        """Where an endpoint answers; raises ConfigError for an address with a password or a query in it, which would be told in errors."""
        address = (self.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")
        if not address.startswith(("http://", "https://")) or set(address) & set("@?#"):
            raise ConfigError("OPENAI_BASE_URL, or judge.base_url: is no plain http(s) address; secrets have their place in OPENAI_API_KEY")
        return address

    @model_validator(mode="before")
    @classmethod
    def _model_of_an_endpoint(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("name", "clip") != "clip" and ".py:" not in str(given["name"]):
            return {"model": ENDPOINT_MODEL} | given
        return given

    @field_validator("replay", mode="before")
    @classmethod
    def _off_is_a_word(cls, given: Any) -> Any:
        return "off" if given is False else given  # which is what YAML reads `off` as

    @model_validator(mode="after")
    def _weights_of_something(self) -> JudgeSection:
        if min(self.weights.values(), default=0) < 0 or not 0 < sum(self.weights.values()) < float("inf"):
            raise ValueError(f"weights {self.weights}: none may be below 0, and one must be above it")
        return self

    @model_validator(mode="after")
    def _nothing_that_another_reads(self) -> JudgeSection:
        for name, judges in {"weights": ("complex_edit",), "scoring": ("complex_edit",), "region_counter": ("mmmg",)}.items():
            given = getattr(self, name)
            if self.remote and self.name not in judges and given != type(self).model_fields[name].default:
                raise ValueError(f"{name} {given}: {self.name} does not read it, {judges[0]} does; remove it")
        return self

    @model_validator(mode="after")
    def _noise_to_gate(self) -> JudgeSection:
        if self.noise_gate and self.name == "clip":
            raise ValueError("noise_gate: clip gives a picture one score, the same every time, and has no noise; remove it")
        if self.noise_gate and self.remote and self.votes < 2:
            raise ValueError(f"noise_gate {self.noise_gate}: one vote does not tell a judge's noise; set votes to 3 or more")
        return self

    @model_validator(mode="after")
    def _a_price_for_a_budget(self) -> JudgeSection:
        if self.most_cost is not None and not self.input_price and not self.output_price:
            raise ValueError("most_cost needs input_price and output_price, the prices of a million tokens; most_tokens needs none")
        return self

    @model_validator(mode="after")
    def _bounds_in_order(self) -> JudgeSection:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}; between them lie the cosines that are told apart")
        return self


class PenaltiesSection(Section):
    copying: float = Field(default=0.0, ge=0)
    """Taken off a completion that is its prompt, word for word; in proportion, one that adds less than 5 words. Stop words, numbers and
    single letters are none."""
    length: float = Field(default=0.0, ge=0)
    """Taken off for every `longest` words beyond the first `longest`, in proportion."""
    longest: int = Field(default=60, ge=5)
    """Words that cost nothing; CLIP reads 77 tokens, about 60 words."""
    painted_text: float = Field(default=0.0, ge=0)
    """Taken off a completion that asks for words in the picture: CLIP reads them, and scores what is written instead of what is shown."""


class PlacementSection(Section):
    renderer: str = "auto"
    """Device of the renderer: `auto` (this process's card, CUDA or ROCm, else MPS, else the CPU), or `cuda:1`, `mps`, `cpu`."""
    judge: str = "auto"
    """Device of the judge, likewise."""
    memory_shares: dict[Literal["policy", "renderer", "judge"], float] = {}  # noqa: RUF012 - pydantic copies it
    """Part -> the share of its card's memory that it may take; parts on one card share what they may take together."""
    empty_cache_every: int = Field(default=5, ge=1)
    """Steps after which the memory that torch holds and nobody uses is given back."""

    @field_validator("renderer", "judge")
    @classmethod
    def _a_device(cls, given: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", given):
            raise ValueError(f"{given!r} is no device; write auto, cuda:1, mps or cpu")
        return given

    @model_validator(mode="after")
    def _shares_of_one(self) -> PlacementSection:
        for part, share in self.memory_shares.items():
            if not 0 < share <= 1:
                raise ValueError(f"memory_shares: {part} takes {share} of a card; a share is above 0 and at most 1")
        return self
