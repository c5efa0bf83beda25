"""The few shapes that the floors of the house hand to each other; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from qwen_vl_grpo.errors import JudgeError, RenderError

if TYPE_CHECKING:
    from PIL.Image import Image

Message = dict[str, Any]
"""One chat turn: {"role": str, "content": str}."""

Mode = Literal["strict", "documented"]
"""Rewards that pay for what was earned, or the published ones with their holes."""

RewardFunction = Callable[..., list[float | None]]
"""f(completions=…, <data set column>=…, **kwargs) -> one score for each completion, None where it could not be judged.

TRL's contract (trl 1.16, GRPOTrainer): `completions` is a list of chats, each [{"role": "assistant", "content": text}].
In training a reward also gets `completion_ids`, `trainer_state`, `log_extra` and `log_metric`; in evaluation it does not, and with
greedy completions it gets `moment` instead, the name of the evaluation; `grpo evaluate` gives `log_extra` alone.
"""


@dataclass(frozen=True)
class Clip:
    """The frames chosen from a video, with what tells when each of them was seen."""

    frames: Any = field(compare=False, repr=False)
    """uint8 array of shape (frames, height, width, 3), RGB, upright, at the size that the policy reads."""
    indices: tuple[int, ...]
    """Place of each frame in the video; where its frames are not evenly spaced, the place that an even spacing would give its time."""
    fps: float
    """Frames a second of the video, so that a frame is seen at index / fps seconds."""
    total: int
    """Frames of the video."""
    sha256: str
    """Of the video's file."""


@dataclass(frozen=True)
class Sample:
    """One question, ready for the policy: the chat, its pictures and clips, and what the rewards need to know.

    The chat's parts {"type": "image"} and {"type": "video"} are the places of `images` and `videos`, in their order.
    """

    id: str
    prompt: list[Message]
    images: Sequence[Image]
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    """What is odd about a row that can be used all the same; counted and said when the rows are prepared."""
    videos: Sequence[Clip] = ()


@dataclass(frozen=True)
class Verdict:
    """What the evaluator says of one completion: well-formed, and well-formed and right."""

    format: bool
    correct: bool | None
    """None where the words alone tell nothing, as of what has to be drawn first."""
    official: bool | None = None
    """What the benchmark's published rule says of the same completion; None where there is no such rule."""
    quality: float | None = None
    """Points of a task that grades its completions; None for one that does not."""


@dataclass(frozen=True)
class Task:
    """A task turns raw rows into samples and says whether a completion solves one.

    `rewards` names the reward functions (with weights) that a config gets when it lists none.
    `read_row` raises DataError for a row that cannot be used; its second argument is the run config's `data` section.
    """

    name: str
    system_prompt: str
    rewards: tuple[tuple[str, float], ...]
    read_row: Callable[[Mapping[str, Any], Any, str], Sample]
    judge: Callable[[str, Sample], Verdict]
    examples: Callable[[Sample], tuple[str, list[str]]] | None = None
    """One completion that solves a sample and some that nearly do (`grpo validate` tries them); raises DataError for an answer that
    no completion can give."""
    own_rewards: Mapping[str, Callable[[Any], RewardFunction]] = field(default_factory=dict)
    """Rewards that are made from the whole run config, by the name under which `rewards:` may list them."""
    told: Callable[[str, str], dict[str, Any]] | None = None
    """What a question and its completion come to, over the usual fields of an answer's record; None for reasoning and answer tags."""
    shown: Callable[[Mapping[str, Any]], str] | None = None
    """A record of an answer as a person reads it on the terminal; None shows the answer alone."""
    arrange: Callable[[Sequence[Mapping[str, Any]], Any], Sequence[tuple[int, Mapping[str, Any]]]] | None = None
    """Raw rows and the `data` section -> the rows that read_row gets, each with the number of the raw row that it came from: a row may
    ask several questions, or none that is wanted. `data.limit` then counts questions. None reads each row as it is."""
    subsets: Callable[[Any], Sequence[str]] | None = None
    """Which configurations of a Hub data set the `data` section asks for, for a set that is split into several."""
    states: Literal["qwen_image", "qwen_image_edit"] | None = None
    """The pipeline in whose template a renderer of the user's own sees the policy's states; None for completions that are not drawn, or
    drawn from their words."""


class Generate(Protocol):
    """Something that answers samples: transformers or a vLLM engine holding the policy as it is now."""

    def __call__(self, samples: Sequence[Sample], count: int, temperature: float) -> list[list[str]]:
        """Return `count` completions for each sample; temperature 0 is greedy. The end-of-turn token is not part of the text."""
        ...


@dataclass(frozen=True)
class Source:
    """A picture that a completion starts from; two are the same if their pixels are."""

    sha256: str
    image: Image = field(compare=False, repr=False)


@dataclass(frozen=True)
class Conditioning:
    """What a renderer sees in place of text: the policy's own hidden states of a completion (images/embeddings.py).

    Two are the same if their values are, so that a judgement is remembered for these weights of the policy and no others.
    """

    sha256: str
    states: Any = field(compare=False, repr=False)
    """Tensor of shape (tokens, width of the policy), on the host."""


@dataclass(frozen=True)
class RenderRequest:
    """One picture that is wanted: what a person asked for, what the policy made of it, and the noise to begin from."""

    original: str
    completion: str
    seed: int
    size: tuple[int, int] | None = None
    """Width and height in pixels; None takes the renderer's own."""
    sources: tuple[Source, ...] = ()
    """Pictures that are to be edited."""
    conditioning: Conditioning | None = None
    """None where the renderer reads the completion as text."""
    rubric: str = ""
    """What a judge must know beside the prompt: a knowledge graph in JSON, for one. A part of what was asked."""


@dataclass(frozen=True)
class Judgement:
    """What a judge says of one picture: `score` from 0 to 1, and the raw values that it comes from."""

    score: float
    details: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


class ImageGenerator(Protocol):
    """A frozen model that draws; loaded on first use."""

    identity: str
    """Everything that decides a picture beside the request: name, weights, revision, settings."""
    batch_size: int

    def render(self, requests: Sequence[RenderRequest]) -> list[Image | RenderError]:
        """Draw requests of one size, at most `batch_size` of them; the same request gives the same picture. What cannot be drawn, or
        is no picture (blank, not a number), is a RenderError in its place."""
        ...

    def rest(self) -> None:
        """The step's last picture is drawn: give memory back, if the config says so."""
        ...


class Judge(Protocol):
    """Something that scores pictures; called from threads, `concurrency` of them."""

    identity: str
    """Name, model and revision, version of its prompt, and how a score is made of its answer."""
    batch_size: int
    """Pictures a call."""
    concurrency: int

    def judge(self, pictures: Sequence[tuple[RenderRequest, Image]]) -> list[Judgement | JudgeError]:
        """Score each picture for its request; what cannot be scored is a JudgeError in its place, never a score. Nobody asks again: a
        judge that can fail in passing has tried again by then, as judges/endpoint.py does."""
        ...


class RunCard(BaseModel):
    """Everything that is known of a run; run.json in its folder. Unknown fields of a newer card are kept."""

    model_config = ConfigDict(extra="allow")

    schema_version: int = 1
    run_id: str
    state: Literal["running", "finished", "failed", "interrupted", "killed"] = "running"
    """`killed` is in no file: it is what a card that says running looks like once no process has the run (registry.as_seen)."""
    demo: bool = False
    group: str | None = None
    """The group that the run is one seed of."""
    task: str
    base_model: str
    base_revision: str | None = None
    dataset: dict[str, Any] = {}
    licences: dict[str, str] = {}
    """base and data -> what is known of their licences (licences.py)."""
    config: dict[str, Any] = {}
    digest: str = ""
    git: dict[str, Any] = {}
    versions: dict[str, str] = {}
    hardware: dict[str, Any] = {}
    system_prompt: str = ""
    preprocessing: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    """Figure -> what the plan predicted before the run, what the run measured, and their ratio (hindsight.py)."""
    checkpoint: str | None = None
    """Folder of the final weights, relative to the run's folder."""
    checkpoint_files: dict[str, str] = {}
    """File, relative to the run's folder -> sha256: the final weights, and the warmed-up base where there is one."""
    tracking: dict[str, Any] = {}
    parent: dict[str, Any] | None = None
    """run_id, checkpoint and hashes of the files that the run started from (`init_from`)."""
    attempts: list[dict[str, Any]] = []
    """start, end, state, first_step and last_step of each. In metrics.jsonl a step that was done again has the line of each attempt."""
    published: dict[str, str] = {}
    """Where a whole copy lies on the Hub: repo, commit, tag."""
    alarms: list[dict[str, Any]] = []
    """Each alarm that rang: name, first_step, last_step, text."""
    proof: dict[str, Any] = {}
    """What the policy answered to a few items when it was trained, and whether the files of the run answer so too (proof.py)."""
    pruned: bool = False
    """What it would be resumed from has been deleted; it still answers."""
    created: str = ""
    finished: str | None = None
    error: str | None = None

    @property
    def watches(self) -> bool:
        """Whether it learned from clips; what an older card does not say, its task tells."""
        return self.preprocessing.get("clips", self.task in ("video_actions", "video_grounding"))

    @property
    def blank(self) -> str:
        """What it was shown to find out what it knows without looking (`evaluation.blind`)."""
        return "a blank clip" if self.watches else "a white picture"


class Listed(BaseModel):
    """What a list of runs shows of a card. Reading no more takes half the time, which counts with a thousand of them."""

    schema_version: int = 1
    run_id: str
    state: str = "running"
    task: str
    base_model: str
    metrics: dict[str, Any] = {}
    created: str = ""
