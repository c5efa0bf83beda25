"""The story of a run: config -> data -> policy -> warm-up -> GRPO -> scores -> card."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from qwen_vl_grpo import (
    answer_tables,
    answering,
    attempts,
    checkpoints,
    dataset,
    evaluation,
    gallery,
    hardware,
    hindsight,
    licences,
    parity,
    policy,
    processors,
    proof,
    pruning,
    publishing,
    ranks,
    registry,
    rollouts,
    strategies,
    tracking,
)
from qwen_vl_grpo.assembly import Prepared, build_trainer, load_policy, prepare
from qwen_vl_grpo.config import RunConfig, arithmetic
from qwen_vl_grpo.errors import DataError
from qwen_vl_grpo.identity import digest
from qwen_vl_grpo.interfaces import Generate, RunCard, Sample
from qwen_vl_grpo.ledger import Beginning, Every, Ledger
from qwen_vl_grpo.peaks import Peaks
from qwen_vl_grpo.plan_figures import CHECKPOINT
from qwen_vl_grpo.rescue import Rescue, Terminated, in_one_sentence
from qwen_vl_grpo.saves import Saves
from qwen_vl_grpo.trainer import VisionGRPOTrainer

log = logging.getLogger("qwen_vl_grpo")


def train(config: RunConfig, resume: bool = False) -> RunCard:
    """Run a config to its end and return the finished card; every refusal comes before the run's folder is made.

    With `resume` the run of this id goes on from its newest whole checkpoint, or begins again where it has none.
    """
    ranks.meet(config.trl.get("ddp_timeout"))
    earlier = attempts.resumable(config) if resume else None
    peaks = Peaks(hardware.occupied(hardware.detect())[0])
    prepared = ranks.in_turn(lambda: prepare(config, resume))
    ranks.agree(_same_everywhere(config, prepared))
    card = _card(config, prepared) if earlier is None else _again(earlier, config, prepared)
    run_dir = config.run_dir if earlier else ranks.first(lambda: registry.claim(config))
    held = attempts.hold(run_dir)
    checkpoint = ranks.first(lambda: checkpoints.to_go_on_from(run_dir))
    step = checkpoints.step_of(checkpoint) if checkpoint else 0
    card = attempts.begin(_foreseen(card, config, prepared), run_dir, step)
    registry.write(card, run_dir)
    if hardware.is_main_process():
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    written = attempts.metrics(run_dir)
    ledger = Ledger(run_dir, config.max_steps, len(card.attempts), attempts.standing(written, step), config.alarms.stop)
    rescue = Rescue()
    try:
        rescue.listen()
        card = card.model_copy(update={"tracking": tracking.start(config, card.task, run_dir, written, step), "alarms": ledger.watch.rang})
        if resume:
            log.info("attempt %d goes on from %s", len(card.attempts), checkpoint or "the start, as there is no whole checkpoint yet")
        log.info(arithmetic(config))
        log.info("rollouts are sampled at temperature %g, whatever evaluations sample at", config.temperature)
        log.info("attention %s, weights %s", card.preprocessing["attn_implementation"], card.preprocessing["dtype"])
        log.info("gradient checkpointing (%s): %d layers are recomputed", config.gradient_checkpointing, prepared.recomputed)
        model = load_policy(config, prepared, run_dir)
        trainer = build_trainer(config, prepared, model, run_dir, ledger)
        exam = _exam(config, prepared, trainer, run_dir)
        if checkpoint is None and (parent := attempts.parent(config)):
            registry.verify_files(parent[0], parent[1].parent)
            log.info("starts from the weights of run %s, %s", parent[0].run_id, parent[1].name)
            trainer.start_from(parent[1])
        rescue.watch(trainer)
        trainer.add_callback(peaks)
        tracking.take_up(trainer, written)
        if config.registry.push == "save":
            trainer.add_callback(Saves(lambda step: _publish_save(card, config, run_dir, step)))
        log.info("what learns:\n%s", policy.table(policy.trainable_parts(trainer.model)))
        _train_and_score(config, prepared, trainer, ledger, card, checkpoint)
        card = attempts.end(_finish(card, config, trainer, run_dir, exam, peaks), "finished", trainer.state.global_step)
        registry.write(card, run_dir)
        tracking.refer(card, run_dir)
        answer_tables.evaluation(card, run_dir)
    except BaseException as error:
        error = in_one_sentence(error)
        state = "interrupted" if isinstance(error, KeyboardInterrupt | Terminated) else "failed"
        stopped = {"state": state, "error": f"{type(error).__name__}: {error}", "finished": registry.now()}
        if checkpoint := rescue.keep():
            stopped |= _kept(card, config, run_dir, checkpoint)
            kept = f"step {checkpoint.split('-')[1]} of {config.max_steps} is kept in {run_dir / checkpoint}"
            error.add_note(kept)
            if state == "interrupted":
                log.info(kept)
        reached = rescue.trainer.state.global_step if rescue.trainer else 0
        registry.write(attempts.end(card, state, max(step, reached)).model_copy(update=stopped), run_dir)
        raise error
    finally:
        tracking.finish()
        ledger.close()
        rescue.release()
        held.close()
    return card if config.registry.push == "none" else publishing.attempt(card, config.registry.public)


def _train_and_score(
    config: RunConfig, prepared: Prepared, trainer: VisionGRPOTrainer, ledger: Ledger, card: RunCard, checkpoint: Path | None
) -> None:
    """Train from a checkpoint or from the start, with what is measured put into the card's metrics as soon as it is known."""
    task, functions, held_out = prepared.task, prepared.functions, prepared.held_out
    generate = _generator(config, trainer, prepared.processor)
    temperature = config.temperature if config.evaluation.temperature is None else config.evaluation.temperature
    metrics = card.metrics

    def scores(samples: list[Sample], moment: str, kept: bool = False) -> dict[str, Any]:
        how = (config.evaluation.samples, temperature, config.evaluation.top_p)
        log.info("scoring %d held-out rows: greedy, and %d sampled answers each at temperature %g, top_p %g", len(samples), *how)
        keep = partial(gallery.keep, config.run_dir, moment, task) if kept and hardware.is_main_process() else None
        return evaluation.evaluate(samples, task, functions, generate, config.evaluation.samples, temperature, keep, moment)

    checked = (
        [dataset.to_sample(row) for row in prepared.rows.select(range(min(parity.ROWS, len(prepared.rows))))] if config.use_vllm else []
    )

    def before() -> None:
        if held_out:
            if "before" not in metrics:
                metrics["before"] = scores(held_out, "before", kept=True)
                registry.write(card, config.run_dir)
            log.info("before: %s", _line(metrics["before"]))
        if checked:
            metrics["parity"] = parity.check(trainer, checked, "before the first step" if checkpoint is None else "before the run goes on")

    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:  # whose weights reach the cards as training begins, and not before
        trainer.add_callback(Beginning(before))
    else:
        before()
    if held_out and config.evaluation.every:
        some = held_out[: config.evaluation.every_limit]
        trainer.add_callback(Every(config.evaluation.every, trainer, lambda step: evaluation.flat(scores(some, f"step {step}"))))
    if checked and config.parity_every:
        trainer.add_callback(Every(config.parity_every, trainer, lambda step: parity.check(trainer, checked, f"after step {step}")))
    started = time.perf_counter()
    if checkpoint is not None and checkpoints.step_of(checkpoint) == config.max_steps:
        trainer.at_the_end_of(checkpoint)
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    metrics["train_seconds"] = round(time.perf_counter() - started, 1)
    if torch.cuda.is_available():
        metrics["peak_gib"] = max(ranks.gathered(round(torch.cuda.max_memory_allocated() / 2**30, 2)))
    metrics["last_step"] = ledger.last
    if held_out:
        metrics["after"] = scores(held_out, "after", kept=True)
        log.info("after: %s", _line(metrics["after"]))
        if config.evaluation.blind and any(sample.images or sample.videos for sample in held_out):
            metrics["blind"] = evaluation.blind(held_out, task, functions, generate)
            log.info("blind (all white): %s", _line({"greedy": metrics["blind"]}))
        if config.evaluation.without_adapter:
            with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
                metrics["without_adapter"] = scores(held_out, "without adapter")
            log.info("without the adapter: %s", _line(metrics["without_adapter"]))


def _generator(config: RunConfig, trainer: VisionGRPOTrainer, processor: Any) -> Generate:
    if not config.use_vllm:
        model = trainer.accelerator.unwrap_model(trainer.model)
        longest, section = config.max_completion_length, config.evaluation
        show, seed = hardware.is_main_process(), config.seed + 1009 * ranks.place()
        own = answering.with_transformers(model, processor, longest, section.batch_size, seed, show, top_p=section.top_p)
        return lambda samples, count, temperature: ranks.joined(own(ranks.share(samples), count, temperature))

    def generate(samples: Sequence[Sample], count: int, temperature: float) -> list[list[str]]:
        engine = trainer.vllm_generation
        assert isinstance(engine, rollouts.FaithfulGeneration)
        engine.sync_weights()
        samples = ranks.share(samples)
        encoded = [policy.encode(processor, [sample])["input_ids"][0].tolist() for sample in samples]
        ids = engine.sample(encoded, [processors.in_order(sample) for sample in samples], count, temperature, config.evaluation.top_p)
        return ranks.joined([processor.batch_decode(row, skip_special_tokens=True) for row in ids])

    return generate


def _same_everywhere(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    """What no process of a run may have of its own."""
    machine = hardware.describe(hardware.detect())
    told = {f"config.{key}": value for key, value in config.model_dump(mode="json").items()}
    told |= {f"version of {name}": version for name, version in hardware.versions().items()}
    return told | {"rows": dataset.fingerprint(prepared.rows), "held-out rows": len(prepared.held_out), "card": machine["name"]}


def _card(config: RunConfig, prepared: Prepared) -> RunCard:
    task, rows, template = prepared.task, prepared.rows, str(prepared.processor.chat_template)
    pixels = {"min_pixels": config.data.min_pixels, "max_pixels": config.data.max_pixels}
    reads: dict[str, Any] = pixels if processors.sees(prepared.processor) else {"reads": "text"}
    return RunCard(
        run_id=config.run_id,
        demo=config.registry.demo,
        group=config.registry.group,
        task=task.name,
        base_model=config.model_name,
        base_revision=config.model_revision,
        dataset={
            "name": config.dataset_name, "split": config.dataset_split, "rows": len(rows), "fingerprint": dataset.fingerprint(rows),
            "held_out": config.evaluation.part, "held_out_rows": len(prepared.held_out),
        },
        licences=licences.of_run(config.model_name, config.dataset_name),
        config=config.model_dump(mode="json"),
        digest=digest(config),
        git=registry.git_state(),
        versions=hardware.versions(),
        hardware=hardware.describe(hardware.detect()) | {"processes": ranks.count()},
        system_prompt=config.task.system_prompt or task.system_prompt,
        preprocessing=reads | {
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
            "attn_implementation": policy.attention(config), "dtype": str(policy.weight_dtype(config)).removeprefix("torch."),
            "layers_recomputed": prepared.recomputed, "clips": bool({"videos", dataset.AS_CLIPS} & set(rows.column_names)),
        },
        parent=_parent(config),
        created=registry.now(),
    )  # fmt: skip


def _parent(config: RunConfig) -> dict[str, Any] | None:
    found = attempts.parent(config)
    return found and {"run_id": found[0].run_id, "checkpoint": found[0].checkpoint, "checkpoint_files": found[0].checkpoint_files}


def _again(card: RunCard, config: RunConfig, prepared: Prepared) -> RunCard:
    """The card of a run that goes on; raises DataError if its rows are others by now."""
    if dataset.fingerprint(prepared.rows) != card.dataset["fingerprint"]:
        raise DataError(f"{config.dataset_name}, split {config.dataset_split}: its rows have changed since the run began; put them back")
    if card.versions != hardware.versions():
        log.warning("other versions than when the run began, so its numbers may differ from those of a run that was not stopped")
    return card.model_copy(update={"config": config.model_dump(mode="json")})


def _exam(config: RunConfig, prepared: Prepared, trainer: VisionGRPOTrainer, run_dir: Path) -> proof.Exam | None:
    """The items of the run's proof, answered by the base that it starts from; None where no process holds all weights, and in all but
    the main process."""
    if not hardware.is_main_process():
        return None
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        log.info("no proof is kept under %s", strategies.named())
        return None
    samples = prepared.held_out or [dataset.to_sample(row) for row in prepared.rows.select(range(min(proof.ITEMS, len(prepared.rows))))]
    model = trainer.accelerator.unwrap_model(trainer.model)
    return proof.Exam(model, prepared.processor, samples, run_dir, config.max_completion_length)


def _foreseen(card: RunCard, config: RunConfig, prepared: Prepared) -> RunCard:
    machine, longest, shown = hardware.detect(), max(prepared.rows["prompt_tokens"]), any(prepared.rows["picture_ids"])
    memory = hardware.memory_gib(machine)
    return card.model_copy(update={"plan": hindsight.predict(config, machine, memory, longest, shown, prepared.recomputed)})


def _finish(card: RunCard, config: RunConfig, trainer: VisionGRPOTrainer, run_dir: Path, exam: proof.Exam | None, peaks: Peaks) -> RunCard:
    checkpoint = f"checkpoint-{trainer.state.global_step}"
    measured = peaks.found(getattr(trainer, "vllm_generation", None)) | {CHECKPOINT: pruning.size(run_dir / checkpoint) / 2**30}
    plan = hindsight.compare(card.plan, measured)
    for line in hindsight.text(plan).splitlines() if plan else ():
        log.info(line)
    finished: dict[str, Any] = {"state": "finished", "finished": registry.now(), "proof": exam.record() if exam else {}, "plan": plan}
    if exam and not finished["proof"]["changed"]:
        log.warning("training changed no answer: the policy answers %d items as its base does, token for token", len(exam.samples))
    return card.model_copy(update=finished | _kept(card, config, run_dir, checkpoint))


def _kept(card: RunCard, config: RunConfig, run_dir: Path, checkpoint: str) -> dict[str, Any]:
    files = registry.hash_files(run_dir, checkpoint) | (registry.hash_files(run_dir, "warmup") if config.warmup else {})
    if (run_dir / proof.FILE).is_file():
        files |= registry.hash_files(run_dir, Path(proof.FILE).parent.name)
    best = attempts.best(run_dir, config.keep_best)
    if best is None and config.keep_best:
        log.warning("keep_best %s: no line of metrics.jsonl has it, so the newest checkpoints alone are kept", config.keep_best)
    named = {"best": {"checkpoint": best[0].name, "metric": config.keep_best, "value": best[1]}} if best else {}
    return {"checkpoint": checkpoint, "checkpoint_files": files, "metrics": card.metrics | named}


def _publish_save(card: RunCard, config: RunConfig, run_dir: Path, step: int) -> RunCard:
    card = card.model_copy(update=_kept(card, config, run_dir, f"checkpoint-{step}"))
    return publishing.publish(card, run_dir, config.registry.public, f"save/{config.run_id}/{step}")


def _line(scores: dict[str, Any]) -> str:
    return ", ".join(
        f"{kind} "
        + (f"correct {values['correct']:.3f} " if "correct" in values else "")
        + f"format {values['format']:.3f}"
        + (f" quality {values['quality']:.2f}" if "quality" in values else "")
        + "".join(f" {name} {value:.3f}" for name, value in values["rewards"].items() if "correct" not in values and value is not None)
        + f" (n {values['n']})"
        for kind, values in scores.items()
    )
