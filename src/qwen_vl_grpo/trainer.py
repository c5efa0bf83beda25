"""TRL's GRPOTrainer, subclassed only where it fails vision runs today."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import TrainerState
from trl.trainer.grpo_trainer import GRPOTrainer

from qwen_vl_grpo import attempts, checkpoints, gallery, groups, policy, processors, ranks, strategies, tracking
from qwen_vl_grpo.correction import importance_weights, joined, statistics
from qwen_vl_grpo.errors import ConfigError, DivergenceError, PolicyError, RegistryError
from qwen_vl_grpo.interfaces import Clip
from qwen_vl_grpo.pictures import OncePreprocessed, SharedRows
from qwen_vl_grpo.rollouts import FaithfulGeneration

log = logging.getLogger("qwen_vl_grpo")

TABLE_ROWS = 16
"""Completions kept for each table: a gallery to look at, not a copy of the run."""

OF_COMPLETIONS = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps",
)  # fmt: skip
"""What TRL gives the loss with one column a completion token."""


class VisionGRPOTrainer(GRPOTrainer):
    """GRPO on pictures and clips: tables that W&B accepts, nothing seen is sent between ranks, batches mix pictures, clips and text."""

    def __init__(
        self,
        *arguments: Any,
        correction: str = "sequence_mean",
        checkpoint_limit: int | None = None,
        keep_best: str | None = None,
        clip_of: Callable[[Mapping[str, Any]], Clip] | None = None,
        **named: Any,
    ):
        if processors.tokenizer(named["processing_class"]).padding_side != "left":  # trl#5785
            raise PolicyError("the processor pads on the right, which puts picture types on padded places; set padding_side to left")
        self._clip_of = clip_of
        self._read_in = policy.dtype_of(named["model"])
        super().__init__(*arguments, **named)
        self._table_images: list[Any] = []
        self._kept: dict[str, str] = {}
        """The files that pictures of the tables are kept in, by picture id."""
        self._given: list[dict[str, Any]] = []
        """The rows of a generation as they are in the data set."""
        self._once: dict[bool, OncePreprocessed] = {}
        """The last generation's, of training and of evaluation."""
        self._correction = correction
        self._checkpoint_limit, self._keep_best = checkpoint_limit, keep_best
        self._saving = self._resumed = False
        self._level: torch.Tensor | None = None
        self._to_weigh: dict[str, Any] | None = None
        self._gaps: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.reserve: Any = None
        """Rows that stand in for groups that teach nothing (reserve.py); None leaves the groups as they are drawn."""

    def _get_dataloader(self, dataset: Any, *arguments: Any, is_training: bool = False, **named: Any) -> Any:
        """Read a row once a generation, and not once a completion and micro-batch."""
        rows = SharedRows(dataset, self._clip_of) if is_training and isinstance(dataset, datasets.Dataset) else dataset
        return super()._get_dataloader(rows, *arguments, is_training=is_training, **named)  # type: ignore[arg-type]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*(self._signature_columns or []), "videos"])]

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[Any, Any, Any]:
        """Read pictures and clips where TRL reads pictures; there, a batch that mixes rows with and without them fails (trl#5139)."""
        if not isinstance(once := self.processing_class, OncePreprocessed):
            return super()._tokenize_prompts(prompts)
        rendering: Any = self.chat_template_kwargs
        ids, media = once.read(prompts, {"chat_template": self.chat_template} | rendering)
        return ids, media, {} if self.use_vllm or media is None else once.whole()

    def _generate(self, prompts: list[Any]) -> Any:
        """Draw again what teaches nothing before TRL scores it; TRL has no dynamic sampling (trl#4764)."""
        output = super()._generate(prompts)
        return self.reserve.refill(self, prompts, output) if self.reserve and self.model.training else output  # type: ignore[union-attr]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        """After the rewards, TRL gathers prompts and completions of all ranks for its table: from here on they are text.

        As they are, every picture is pickled and sent at every step (trl 1.16), and wandb.Table refuses nested prompts.
        """
        with ranks.awaited(f"the rewards of step {self.state.global_step + 1}"):
            rewards = super()._calculate_rewards(self._given, prompts, completions, completion_ids_list)
        left = max(0, TABLE_ROWS - len(prompts) * self.accelerator.process_index) if self.log_completions else 0
        if self.model.training:  # type: ignore[union-attr]
            size: Any = self.num_generations
            if self._gate_noise(rewards, size):
                first = self.accelerator.process_index * len(prompts)
                self._level = groups.level(rewards, self.reward_weights, size)[first : first + len(prompts)]
            told = groups.statistics(rewards, self.reward_weights, size) | groups.unique(ranks.joined(completion_ids_list), size)
            for name, value in told.items():
                self._metrics["train"][name].append(value)
            if self.log_completions:
                folder = Path(self.args.output_dir)  # type: ignore[arg-type]
                names = [gallery.keep_asked(folder, row, self._kept) for row in self._given[:left]]
                self._log_completion_extra("gold", [json.dumps(gallery.telling(row)) for row in self._given])
                self._log_completion_extra("pictures", [json.dumps(shown) for shown in names + [[]] * (len(prompts) - len(names))])
        self._table_images = ranks.joined([row.get("images") or [] for row in self._given[:left]])
        prompts[:] = [processors.as_text(prompt) for prompt in prompts]
        completions[:] = [processors.as_text(completion) for completion in completions]
        return rewards

    def _gate_noise(self, rewards: torch.Tensor, size: int) -> bool:
        """Let no group teach that its judge's noise explains, and say whether a reward wants that; in place, and after the gathering: a
        group may lie on several ranks."""
        functions: list[Any] = list(self.reward_funcs)
        gated = False
        for column, function in enumerate(functions):
            if times := getattr(function, "noise_gate", 0.0):
                own = [math.nan if noise is None else noise for noise in function.noises]
                noises: Any = self.accelerator.gather(torch.tensor(own, device=rewards.device))
                rewards[:, column], share = groups.noise_gate(rewards[:, column], noises, size, times)
                self._metrics["train"]["groups/gated"].append(share)
                gated = True
        return gated

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Preprocess each picture and clip once, and leave the importance ratio to the loss: TRL reads every sample once more for it."""
        processor, self._given = self.processing_class, [*inputs]
        if processors.sees(processor):
            self.processing_class = self._once[self.model.training] = OncePreprocessed(processor)  # type: ignore[union-attr]
            inputs = [processors.filled(row) for row in inputs]
        started, corrects = time.perf_counter(), self.vllm_importance_sampling_correction
        self.vllm_importance_sampling_correction = False
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self.processing_class = processor
            self.vllm_importance_sampling_correction = corrects
        if self._level is not None and self.multi_objective_aggregation == "sum_then_normalize":
            output["advantages"][self._level] = 0.0  # the mean of equal rewards is off by a rounding, which scaling makes about 1e-3
        self._level = None
        self._metrics["train"]["rollouts/seconds/generate_and_score"].append(time.perf_counter() - started)
        return output

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Weigh the loss by our ratio, and log once a step what the raw ratios were (trl#4772, trl#5231)."""
        inputs = cut_to_longest(inputs)
        self._to_weigh = inputs if "sampling_per_token_logps" in inputs else None
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._to_weigh = None
        if self._gaps and len(self._gaps) == self.current_gradient_accumulation_steps:
            gaps = ranks.joined([(gap.cpu(), mask.cpu()) for gap, mask in self._gaps])
            for name, value in statistics(self._correction, *joined(gaps)).items():
                self._metrics["train"][name].append(value)
            self._gaps.clear()
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *arguments: Any, once: OncePreprocessed | None = None, **named: Any) -> Any:
        """Inside the loss these are the log-probabilities that the ratio needs, unless the samples are older than the step.

        `once` is what gave the numbers that stand for pixels, if it is not the last generation's.
        """
        door = nullcontext()
        once = once or self._once.get(self.model.training)  # type: ignore[union-attr]
        if once is not None and processors.sees(once):
            door = once.at_the_door(model, self.accelerator.unwrap_model(model).get_encoder(modality="image"))
        with door:
            scored = super()._get_per_token_logps_and_entropies(model, *arguments, **named)
        if (inputs := self._to_weigh) is not None:
            gaps = inputs.get("old_per_token_logps", scored[0].detach()) - inputs["sampling_per_token_logps"]
            inputs["importance_sampling_ratio"] = importance_weights(self._correction, gaps, inputs["completion_mask"])
            self._gaps.append((gaps, inputs["completion_mask"]))
        return scored

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return f"{folder}/{checkpoints.ASIDE}" if self._saving else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write aside, hash and rename: a kill while saving leaves nothing that looks like a checkpoint."""
        run_dir = Path(self._get_output_dir(trial))
        self._saving = True
        try:
            if self.args.should_save:
                shutil.rmtree(run_dir / checkpoints.ASIDE, ignore_errors=True)
                checkpoints.refuse_full(run_dir, checkpoints.saved_bytes(self.model, self.args.save_only_model))
            self.accelerator.wait_for_everyone()
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                checkpoints.publish(run_dir / checkpoints.ASIDE / f"checkpoint-{self.state.global_step}", run_dir)
                (run_dir / checkpoints.ASIDE).rmdir()
        except (OSError, SafetensorError, RuntimeError) as error:  # torch says RuntimeError where a disk is full
            shutil.rmtree(run_dir / checkpoints.ASIDE, ignore_errors=True)  # the card needs room, too
            raise RegistryError(
                f"{run_dir}: the checkpoint of step {self.state.global_step} cannot be written ({' '.join(str(error).split())[:200]}); "
                "those before it are whole, so make room and go on with --resume"
            ) from error
        finally:
            self._saving = False
        if self.args.should_save:
            best = attempts.best(run_dir, self._keep_best)
            checkpoints.prune(run_dir, self._checkpoint_limit, self.state.global_step, best and best[0])
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Keep a whole policy in the dtype that it was read in, and tied weights once: what FSDP2 gathers is float32, and FSDP2 and ZeRO-2
        hand over the head and the embeddings apart (accelerate 1.15, DeepSpeed 0.19)."""
        model: Any = self.accelerator.unwrap_model(self.model)
        if state_dict is not None and not isinstance(model, PeftModel):
            state_dict = {
                name: weight.to(self._read_in) if weight.is_floating_point() else weight
                for name, weight in state_dict.items() if name not in model.all_tied_weights_keys
            }  # fmt: skip
        super()._save(output_dir, state_dict)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._order: Any = super()._get_train_sampler(dataset)
        return self._order

    def _init_training_state(self, *arguments: Any, **named: Any) -> tuple[int, int]:
        """Put the data's order and the generation window where a resumed run left them (trl 1.16).

        RepeatSampler draws each epoch's order from its own generator and begins anew with the first one, so that a run resumed in
        its second epoch would see the data in another order; and the window is counted from the resumption on.
        """
        epochs, steps = super()._init_training_state(*arguments, **named)
        self._resumed = self.state.global_step > 0
        for _ in range(epochs if self._order.shuffle else 0):
            torch.randperm(self._order.num_samples, generator=self._order.generator)
        self._step = epochs * (len(self._order) // self.args.generation_batch_size) + steps  # type: ignore[operator]
        if self._step % (self.args.steps_per_generation * self.num_iterations):  # type: ignore[operator]
            log.warning(
                "step %d lies between two generations: its completions are gone and generated anew, so the numbers differ from those of a "
                "run that was not stopped", self.state.global_step,
            )  # fmt: skip
        return epochs, steps

    def start_from(self, checkpoint: Path) -> None:
        """Take the weights of another run's checkpoint, and nothing else of it."""
        self._load_from_checkpoint(str(checkpoint))

    def at_the_end_of(self, checkpoint: Path) -> None:
        """Take the weights and the step of a checkpoint to which no step is to be added; raises ConfigError where no process could hold
        the weights of a whole policy."""
        if (strategy := strategies.named()) in strategies.SHARDED:
            raise ConfigError(
                f"{checkpoint}: is the last step of its run, and what is left is to score it, for which {strategy} would have to begin "
                "training; resume it with --strategy ddp"
            )
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Stop before a gradient that is no number reaches the weights; transformers only hides it from the logged loss."""
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not math.isfinite(norm):
            raise DivergenceError(
                f"the gradient of step {self.state.global_step + 1} is {float(norm)}, so it was not applied; lower "
                "learning_rate, or set trl.max_grad_norm below 1"
            )
        return norm

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Read a whole model as from_pretrained does: transformers 5.17 saves it under the published names of its weights, and on
        resuming passes over every name that is not the module's own, so that the run would go on from the untrained weights.
        """
        model = model or self.model
        if isinstance(model, PeftModel) or self.is_fsdp_enabled:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        saved = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(saved.state_dict())

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trim the table to the first rows of the last batch, and add their pictures."""
        if self.log_completions:
            columns = [self._logs["prompt"], self._logs["completion"], self._logs["advantages"]]
            for column in [*columns, *self._logs["rewards"].values(), *self._logs["extra"].values()]:
                while len(column) > TABLE_ROWS:
                    column.pop()
            self._logs["images"].clear()
            if len(self._table_images) == len(self._logs["prompt"]):
                self._logs["images"].extend(tracking.pictures(self._table_images))
        if self.use_vllm and isinstance(self.vllm_generation, FaithfulGeneration):
            logs |= self.vllm_generation.figures()
        if self._resumed:
            logs.pop("train_loss", None)  # transformers divides the loss of the last attempt by the steps of all
        super().log(logs, start_time)


def cut_to_longest(inputs: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch without the columns that are padding in each of its rows: TRL pads to the longest of the whole generation."""
    asked, answered = inputs["prompt_mask"].any(0), inputs["completion_mask"].any(0)
    start = int(asked.int().argmax())
    kept = max([2, *(answered.nonzero()[-1:, 0] + 1).tolist()])  # TRL takes one column for one value a sequence
    cut = {key: inputs[key][:, start:] for key in ("prompt_ids", "prompt_mask")}
    cut |= {key: inputs[key][:, :kept] for key in OF_COMPLETIONS if key in inputs}
    if "mm_token_type_ids" in inputs:
        cut["mm_token_type_ids"] = inputs["mm_token_type_ids"][:, start : len(asked) + kept]
    return inputs | cut
