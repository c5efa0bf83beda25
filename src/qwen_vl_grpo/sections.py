"""The sections of the run config; config.py puts them together.

The text under each field is its documentation: docs/configuration.md is generated from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from qwen_vl_grpo.errors import ConfigError
from qwen_vl_grpo.run_id import check_run_id


def _run_id(value: str) -> str:
    try:
        return check_run_id(value)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("run_id: ")) from None


RunId = Annotated[str, AfterValidator(_run_id)]


class Section(BaseModel):
    """A part of the config: unknown keys fail, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class TaskSection(Section):
    name: str = "visual_reasoning"
    """The task: a built-in name, or `path/to/module.py:function` for your own (a function that returns a Task)."""
    mode: Literal["strict", "documented"] = "strict"
    """The rewards of a run that lists none: `strict` has no holes, `documented` pays the published values (docs/reward_logic.md)."""
    system_prompt: str | None = None
    """Replaces the task's system prompt."""


class LoraSection(Section):
    enabled: bool = True
    """False trains the weights themselves (full fine-tuning), all those of the parts below."""
    r: int = Field(default=16, ge=1)
    """Rank of the adapter."""
    alpha: int = Field(default=32, ge=1)
    """Scale: the adapter's update is multiplied by alpha / r."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the adapter's input while training."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Linear layers of the language model that get an adapter."""
    language: bool | Literal["head"] = True
    """Train the language model: with adapters on its `target_modules`, or all of it with embeddings and head in full fine-tuning. There
    `head` trains the output head alone: other words are chosen, and the state of a given word stays what it is."""
    vision: bool = False
    """Train the vision tower, too: with adapters on its linear layers, or all of it in full fine-tuning."""
    merger: bool | None = None
    """Train what hands the tower's output to the language model (Qwen3-VL's deepstack mergers, too); none does as `vision` says."""
    quantization: Literal["4bit"] | None = None
    """`4bit` holds the frozen base in 4 bits (QLoRA; needs bitsandbytes)."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the model that learn, as policy.part names them."""
        merger = self.vision if self.merger is None else self.merger
        learns = {"vision": self.vision, "merger": merger, "language": self.language is True, "head": self.language == "head"}
        return tuple(name for name, learning in learns.items() if learning)

    @model_validator(mode="after")
    def _something_learns(self) -> LoraSection:
        if not self.parts:
            raise ValueError("nothing would learn; set language, merger or vision to true")
        if self.enabled and self.language == "head":
            raise ValueError("language: TRL takes log-probabilities from the head itself, past an adapter; set enabled: false beside head")
        return self


class RewardEntry(Section):
    function: str
    """A documented reward by name, or `path/to/module.py:function` for your own."""
    weight: float = 1.0
    """The reward is multiplied by this before the rewards are added."""


ColumnName = Literal["image", "images", "question", "answer", "id", "choices", "precision", "unit", "question_type", "answer_type", "graph"]

LEVELS = ("preschool", "primaryschool", "secondaryschool", "highschool", "undergraduate", "PhD")
DISCIPLINES = (
    "Biology", "Chemistry", "Economics", "Engineering", "Geography", "History", "Literature", "Math", "Philosophy", "Sociology",
)  # fmt: skip
"""MMMG's, as the names of its parts spell them."""


def _listed(value: Any) -> Any:
    """One value may stand where a list of them may."""
    return value if isinstance(value, list | tuple) else (value,)


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    """A validator that takes a known name whatever its case, and names the nearest one of another."""
    by_case = {name.lower(): name for name in known}

    def check(name: str) -> str:
        if name.lower() not in by_case:
            near = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=0.4)
            hint = f"did you mean {by_case[near[0]]!r}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"there is no {name!r}; {hint}")
        return by_case[name.lower()]

    return check


def _complexity(level: int) -> int:
    if not 1 <= level <= 8:
        raise ValueError(f"there is no complexity {level}; the nearest is {min(max(level, 1), 8)}, of 1 to 8")
    return level


Element = TypeVar("Element")
OneOrMore = Annotated[tuple[Element, ...], BeforeValidator(_listed)]
Complexity = Annotated[int, AfterValidator(_complexity)]
Level = Annotated[str, AfterValidator(_one_of(LEVELS))]
Discipline = Annotated[str, AfterValidator(_one_of(DISCIPLINES))]


class DataSection(Section):
    columns: dict[ColumnName, str] = {}
    """Our name -> the data set's column (`question: query` reads `query`), for: image, images, question (also an instruction or a
    prompt), answer, id, what an answer is judged by (choices, precision, unit, question_type, answer_type), and a knowledge graph."""
    complexity: OneOrMore[Complexity] = ()
    """Complex-Edit's levels (task image_edit), 1 to 8, one or several: each is one instruction for each picture; none takes all."""
    levels: OneOrMore[Level] = ()
    """MMMG's levels (task text_to_image), preschool to PhD, one or several; none takes all."""
    disciplines: OneOrMore[Discipline] = ()
    """MMMG's disciplines (task text_to_image), one or several; none takes all."""
    decoys: int = Field(default=3, ge=0)
    """Elements of other knowledge graphs that a judge is asked about in each picture of task text_to_image: how often it sees what
    cannot be there is its bias towards yes."""
    registry: str | None = None
    """YAML file of data sets, for `dataset_use`: name -> `annotations` and `media_root` (docs/video.md); every data set of the run, that of
    an evaluation and a warm-up, too, is then named by it."""
    subset: str | None = None
    """Configuration of a data set on the Hub that has several."""
    revision: str | None = None
    """Branch, tag or commit of a data set on the Hub."""
    min_pixels: int = Field(default=56 * 56, ge=28 * 28)
    """Smaller pictures are enlarged to this many pixels, once, before training."""
    max_pixels: int = Field(default=1280 * 28 * 28, ge=28 * 28)
    """Larger pictures are shrunk to this many pixels, once, before training."""
    limit: int | None = Field(default=None, ge=1)
    """Use only the first rows of each part; of rows that ask several questions, or are chosen by the keys above, the first questions."""
    overlong: Literal["refuse", "drop"] = "refuse"
    """What to do with a prompt that leaves no room for max_completion_length in the context."""
    unusable: Literal["refuse", "drop"] = "refuse"
    """What to do with a row whose picture, question or answer cannot be used."""
    filter: tuple[float, float] | None = None
    """Train on the rows alone whose solve rate lies between these two, `[0.1, 0.9]` for one, as `grpo probe` measured it."""
    curriculum: Literal["none", "easy_first"] = "none"
    """`easy_first` trains in the order of the solve rates, from the rows that are solved most; `none` shuffles."""
    probe: str | None = None
    """Whose solve rates these are, a run_id or a model; none takes what the run starts from, `init_from` or `model_name`."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that prepare rows; none takes the CPUs that there are, 8 at most, and one for a small set."""

    @property
    def uses_probe(self) -> bool:
        return self.filter is not None or self.curriculum != "none"

    @model_validator(mode="after")
    def _filter_leaves_room(self) -> DataSection:
        if self.filter is not None and not 0 <= self.filter[0] <= self.filter[1] <= 1:
            raise ValueError(f"filter {list(self.filter)}: is the least and the most solve rate, of 0 to 1 and in this order")
        return self

    @model_validator(mode="after")
    def _pixel_limits_in_order(self) -> DataSection:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is more than max_pixels {self.max_pixels}; raise one or lower the other")
        return self


class DynamicSamplingSection(Section):
    reserve: int = Field(ge=1)
    """Groups that a generation may draw from other rows in place of those that are all right or all wrong; what the completions
    are worth counts alone, not their form. Those that find no replacement stay."""


class WarmupSection(Section):
    dataset_name: str
    """JSON Lines, Parquet or folder with the columns of the training data and `target`, the completion to imitate."""
    dataset_split: str = "warmup"
    """The part of it to use."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=32, ge=1)
    """Examples a step."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate; it falls linearly to 0."""


class EvaluationSection(Section):
    dataset_split: str | None = None
    """The held-out part: another split of the data set. Without it, held_out or ids_file the run is not evaluated."""
    dataset_name: str | None = None
    """The data set of that split, where it is another than the run's; `data:` counts for both."""
    held_out: float | None = Field(default=None, gt=0, lt=1)
    """Hold out this share of the pictures of dataset_split, with all their rows, always the same ones."""
    ids_file: str | None = None
    """Hold out the rows of dataset_split whose ids stand in this file, one a line; others that show one of their pictures are left out."""
    every: int | None = Field(default=None, ge=1)
    """Score the held-out part every so many steps, too, and not only before and after."""
    every_limit: int = Field(default=64, ge=1)
    """How many held-out rows the evaluations during training use."""
    samples: int = Field(default=4, ge=1)
    """Sampled completions for each held-out row, beside one greedy completion."""
    temperature: float | None = Field(default=None, gt=0)
    """Sampling temperature of these; none takes the one of the rollouts."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample these from the likeliest tokens that make up this share; rollouts always sample from all tokens."""
    blind: bool = True
    """After training, also answer with white pictures and clips: a policy that looks falls to chance."""
    without_adapter: bool = False
    """After training, also score with the LoRA adapter switched off: what is lost again is what GRPO taught it."""
    batch_size: int = Field(default=64, ge=1)
    """Completions generated at once."""

    @property
    def part(self) -> str | None:
        """What is held out, in words; None for a run that is not evaluated."""
        shared = f"{self.held_out:g} of the pictures" if self.held_out else None
        split = self.dataset_split and ", split ".join(filter(None, (self.dataset_name, self.dataset_split)))
        return split or shared or self.ids_file


TRACKERS = ("wandb", "trackio", "tensorboard")


class TrackingSection(Section):
    report_to: str | tuple[str, ...] = "wandb"
    """Where metrics go beside the run's own metrics.jsonl: `wandb`, `trackio`, `tensorboard`, a list of them, or `none`."""
    project: str = "grpo"
    """Project of W&B and trackio."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """`auto` is what WANDB_MODE says, else online where WANDB_API_KEY is set; `wandb sync` uploads an offline run later."""
    tags: tuple[str, ...] = ()
    """W&B tags."""
    log_completions: bool = True
    """Keep tables of completions with their rewards (Parquet in the run's folder, W&B and trackio)."""

    @field_validator("report_to")
    @classmethod
    def _known(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = (given,) if isinstance(given, str) else given
        for name in names:
            if name not in TRACKERS and (name != "none" or len(names) > 1):
                raise ValueError(f"{name!r} cannot stand here; choose of {', '.join(TRACKERS)}, or none alone")
        return given

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers that are asked for, each once."""
        names = (self.report_to,) if isinstance(self.report_to, str) else self.report_to
        return tuple(dict.fromkeys(name for name in names if name != "none"))


AlarmName = Literal[
    "clipped", "groups_without_spread", "format_without_correctness", "length_collapse", "length_runaway", "entropy_collapse", "kl",
    "reward_alone", "judge_failures", "silent", "not_a_number", "zero_reward", "slow_step", "sampling_disagreement",
]  # fmt: skip


class AlarmsSection(Section):
    stop: tuple[AlarmName, ...] = ()
    """Alarms that end a run where they start, with the step kept: `kl`, `reward_alone`, … (docs/tracking.md); `--resume` goes on."""


class RegistrySection(Section):
    demo: bool = False
    """A demonstration run: the only kind that a new run of the same id replaces."""
    push: Literal["none", "end", "save"] = "none"
    """Publish the run to the repository of HF_REGISTRY_REPO at its `end`, or at every `save` and its end; a failed push fails no run."""
    public: bool = False
    """Publish even if anyone can read the repository."""
    group: RunId | None = None
    """The group that this run is one seed of; `grpo train --seeds` sets it."""
