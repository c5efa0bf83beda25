"""What test_ranks.py runs in two processes, and the gradients' part of it in one: `two_processes.py FOLDER CHECKPOINT`.

Each process writes what it saw to FOLDER/<number of processes>-<its place>.pt.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import datasets
import torch
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from PIL import Image
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
from transformers.trainer_utils import SaveStrategy

from demo import digits, tiny_qwen_image
from qwen_vl_grpo import assembly, policy, ranks, sharding, tasks, training
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.errors import RankError
from qwen_vl_grpo.interfaces import Sample
from qwen_vl_grpo.ledger import Ledger

JUDGE = Path(__file__).parents[1] / "fixtures/bright.py"
ROWS = 16
"""Completions a step, on however many processes."""
GROUP = 16
"""All of them: the group lies on both processes."""


def say(place):
    """A completion of its own for each of the ROWS, of another length."""
    return [100 + (7 * place + i) % 50 for i in range(1 + place % 6)]


def rows():
    """Eight questions, the first half of them without a picture."""
    prompts = [[{"role": "user", "content": f"Question {i}?"}] for i in range(8)]
    images = [[Image.new("RGB", (56, 56 + 28 * (i % 3)), "red")] * (i // 4) for i in range(8)]
    features = datasets.Dataset.from_dict({"prompt": prompts}).features
    features["images"] = datasets.List(datasets.Image())
    return datasets.Dataset.from_dict({"prompt": prompts, "images": images}, features=features)


class Gradient(TrainerCallback):
    """The gradient of each step as the optimizer gets it."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.seen.append({name: getattr(own, "full_tensor", own.clone)() for name, own in gradients.items()})


def odd(completions, **_):
    """A reward with a spread, and a noise that explains one group of four and not another."""
    odd.noises = [0.05] * len(completions)
    return [None if len(text) == 3 else float(len(text) % 4) for text in (completion[0]["content"] for completion in completions)]


odd.noise_gate = 1.0


def trainer_of(folder, checkpoint, **changes):
    size = ROWS // ranks.count() // changes.get("gradient_accumulation_steps", 1)
    keys = {
        "run_id": "two", "model_name": checkpoint, "use_vllm": False, "gradient_checkpointing": False, "num_generations": 4, "max_steps": 1,
        "max_completion_length": 8, "learning_rate": 1e-3, "lora": {"enabled": False, "vision": True}, "batch_size": size,
        "gradient_accumulation_steps": 1, "tracking": {"report_to": "none", "log_completions": False},
    }  # fmt: skip
    config = configs.check(keys | changes | {"trl": {"max_grad_norm": 0.0} | changes.get("trl", {})})
    prepared = assembly.Prepared(tasks.build(config.task), [odd], [1.0], policy.load_processor(config), rows(), [], None, 0)
    return assembly.build_trainer(config, prepared, assembly.load_policy(config, prepared, folder), folder, Ledger(folder, 1))


def gradient(folder, checkpoint, share=lambda trainer: None, **changes):
    """One step on completions that are given, and log-probabilities of an engine that is a little off."""
    trainer = trainer_of(folder, checkpoint, **changes)
    share(trainer)
    start = ranks.place() * ROWS // ranks.count()

    def single_turn(prompts, *_, **__):
        completions = [say(start + i) for i in range(len(prompts))]
        return completions, [[-5.0 + 0.01 * token for token in completion] for completion in completions]

    trainer._generate_single_turn = single_turn
    trainer.use_vllm, trainer.vllm_generation = True, None
    callback = Gradient()
    trainer.add_callback(callback)
    trainer.train()
    return callback.seen[0], trainer.state.log_history[0]


CALLED = list[tuple[int, ...]]()


def split(policy, precision):
    """Split a policy as accelerate does on cards (FSDP2): on a CPU it leaves it whole."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=True)
    if precision != "no":
        plugin.set_mixed_precision(precision)
    its, main = SimpleNamespace(fsdp_plugin=plugin), ranks.place() == 0
    cards = SimpleNamespace(state=its, mixed_precision=precision, device=torch.device("cpu"), is_main_process=main, is_fsdp2=True)
    assert fsdp2_prepare_model(cards, policy) is policy


def by_accelerate(trainer):
    """Split a trainer's policy, and let CALLED get the calls of its head."""
    split(trainer.model, "no")
    trainer.model.get_output_embeddings().register_forward_hook(lambda _, given, __: CALLED.append(tuple(given[0].shape)))
    trainer.accelerator.prepare_model = lambda model, **_: model  # no DDP around it
    trainer.args.save_strategy = SaveStrategy.NO


def held_by_fsdp2(checkpoint):
    """Bytes that a process holds of a whole policy that accelerate splits as on a card: of its weights, of the gradients after two
    micro-steps, and of Adam's states."""
    policy = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.bfloat16)
    policy.get_encoder(modality="image").requires_grad_(False)
    split(policy, "bf16")
    optimizer = torch.optim.AdamW(weight for weight in policy.parameters() if weight.requires_grad)
    ids, held = torch.arange(100, 120)[None], {"weights": size(weight.to_local() for weight in policy.parameters())}
    for _ in range(2):
        policy(input_ids=ids, mm_token_type_ids=torch.zeros_like(ids)).logits.float().pow(2).mean().backward()
    groups = {module._get_fsdp_state()._fsdp_param_group for module in policy.modules() if isinstance(module, FSDPModule)}
    gathered = [getattr(weight, "_unsharded_param", None) for group in groups if group for weight in group.fsdp_params]
    gradients = [weight.grad.to_local() for weight in policy.parameters() if weight.grad is not None]
    held["gradients"] = size([*gradients, *(weight.grad for weight in gathered if weight is not None and weight.grad is not None)])
    optimizer.step()
    states = [state for states in optimizer.state.values() for name, state in states.items() if name.startswith("exp_avg")]
    return held | {"optimizer": size(state.to_local() for state in states)}


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def sharded(checkpoint):
    """A policy whose weights lie on both processes (FSDP2), with adapters or whole; and the same whole beside it."""
    whole, parted = (AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32) for _ in range(2))
    mesh = torch.distributed.init_device_mesh("cpu", (ranks.count(),))
    for part in (*parted.get_encoder(modality="image").blocks, *parted.get_decoder().layers, parted):
        fully_shard(part, mesh=mesh)
    sharding.look_alike(parted)
    return whole, parted


def handed_over(whole, parted):
    """What an engine gets of a sharded policy whose root a pass has left whole, beside the weights; and whether all is parted again."""
    parted.unshard()
    given, held = list(sharding.whole_weights(parted)), whole.state_dict(keep_vars=True)
    return {
        "names": sorted(name for name, _ in given) == sorted(name for name, _ in whole.named_parameters()),
        "away": max((weight - held[name]).abs().max().item() for name, weight in given),
        "parted": all(hasattr(weight, "device_mesh") for weight in parted.parameters()),
    }


def one_sees_nothing(whole, parted, processor):
    """How far the sharded gradient is from the whole one, where the first process has a batch of text alone."""
    batches = [policy.encode(processor, [Sample("", row["prompt"], row["images"], "")]) for row in (rows()[0], rows()[7])]
    score = lambda model, batch: model(**batch, use_cache=False).logits.pow(2).mean()  # noqa: E731
    score(parted, batches[ranks.place()]).backward()
    (sum(score(whole, batch) for batch in batches) / 2).backward()
    pairs = [(own.grad.full_tensor(), other.grad) for own, other in zip(parted.parameters(), whole.parameters(), strict=True)]
    return {"away": max((own - other).abs().max().item() for own, other in pairs if other is not None)} | {
        "vision": max(weight.grad.abs().max().item() for weight in whole.get_encoder(modality="image").parameters())
    }


def unequal_cache_hits(folder, checkpoint, parted, processor):
    """Scores of a reward that draws from a sharded policy's states: the second time all is remembered here, and new in the other."""
    renderer = {"name": "qwen_image", "model": str(folder / "renderer"), "width": 32, "height": 32, "steps": 1, "guidance_scale": 2.0}
    tiny_qwen_image.build(folder / "renderer", "qwen_image", checkpoint)
    config = configs.check(
        {"run_id": "states", "model_name": checkpoint, "renderer": renderer, "judge": {"name": f"{JUDGE}:judge"}}
        | {"task": {"name": "text_to_image"}, "output_dir": str(folder), "lora": {"enabled": False}}
    )
    ((reward, _),) = tasks.rewards(tasks.build(config.task), config)
    reward.hold(parted, processor)
    forwards, remembered = [], {}
    parted.register_forward_hook(lambda *_: forwards.append(1))
    for words in (["a red cat"] * 3, ["a red cat"] * 3 if ranks.place() == 0 else [f"cat {number}" for number in range(10)]):
        scores = reward([[{"role": "assistant", "content": text}] for text in words], ["a cat"] * len(words), remembered.__setitem__)
    return {"scores": scores, "forwards": len(forwards), "remembered": remembered["rendered/remembered"]}


def exchanged():
    """What processes tell each other, and how one is named that is of another run or does not come."""
    everyone = list(range(5))
    seen = {
        "part": list(ranks.share(everyone)), "joined": ranks.joined(ranks.share(everyone)), "first": ranks.first(lambda: ranks.place()),
        "time": ranks.in_turn(time.monotonic),
    }  # fmt: skip
    try:
        ranks.agree({"max_steps": 3 + ranks.place(), "rows": "a"})
    except RankError as error:
        seen["another run"] = str(error)
    own_group = torch.distributed.new_group(backend="gloo")
    patient, ranks._group, ranks._patience = (ranks._group, ranks._patience), own_group, timedelta(seconds=1)
    try:
        if ranks.place() == 0:  # the other never comes
            ranks.together("the rewards of step 7")
    except RankError as error:
        seen["late"] = str(error)
    ranks._group, ranks._patience = patient
    ranks.together("the end")
    return seen


def lora_run(folder, checkpoint, run_id, steps=2):
    """A run from its config to its card, in both processes, resumed for a third step; what each sampled, and the card's metrics."""
    config = configs.check(
        {
            "run_id": run_id,
            "output_dir": str(folder.parent / "runs"),
            "model_name": checkpoint,
            "dataset_name": str(folder.parent / "digits"),
        }
        | {"dataset_split": "train", "use_vllm": False, "learning_rate": 1e-3, "max_steps": steps, "batch_size": 4, "num_generations": 4}
        | {"gradient_accumulation_steps": 1, "max_completion_length": 6, "gradient_checkpointing": False, "data": {"limit": 8}}
        | {"rewards": [{"function": f"{folder.parent / 'reward.py'}:said"}], "tracking": {"report_to": "none"}}
        | {"evaluation": {"dataset_split": "test", "samples": 2}}
    )
    card = training.train(config, resume=steps > 2)
    said = folder.parent / f"said-{ranks.place()}"
    return {"said": said.rename(folder / f"{run_id}-{steps}").read_text(encoding="utf-8"), "metrics": card.metrics}


def main(folder, checkpoint):
    ranks.meet()
    folder = folder / f"{ranks.count()}-{ranks.place()}"
    folder.mkdir(parents=True)
    accumulation = 2 // ranks.count()
    seen = {}
    for name, changes in CASES.items():
        seen[name] = gradient(folder, checkpoint, gradient_accumulation_steps=accumulation, **changes)
    shared = {"share": by_accelerate} if ranks.count() == 2 else {}
    seen["untied"] = gradient(folder, str(folder.parent / "untied"), **shared, gradient_accumulation_steps=accumulation, **CASES["dapo"])
    CALLED.clear()
    if ranks.count() == 2:
        if ranks.place() == 0:
            digits.write(folder.parent / "digits")
            (folder.parent / "reward.py").write_text(REWARD, encoding="utf-8")
        whole, parted = sharded(checkpoint)
        processor = AutoProcessor.from_pretrained(checkpoint)
        seen["fsdp2"] = gradient(folder, checkpoint, by_accelerate, gradient_accumulation_steps=accumulation, **CASES["dapo"])
        seen["called"] = list(CALLED)
        seen["handed over"] = handed_over(whole, parted)
        seen["held"] = held_by_fsdp2(checkpoint)
        seen["exchanged"] = exchanged()
        seen["nothing"] = one_sees_nothing(whole, parted, processor)
        seen["states"] = unequal_cache_hits(folder, checkpoint, parted, processor)
        seen["runs"] = [lora_run(folder, checkpoint, run_id) for run_id in ("two-ranks", "two-ranks-again")]
        lora_run(folder, checkpoint, "two-ranks", steps=3)
    torch.save(seen, folder / "seen.pt")


REWARD = """\
import os
from pathlib import Path

def said(completions, trainer_state=None, **_):
    texts = [completion[0]["content"] for completion in completions]
    if trainer_state is not None:
        with Path(__file__).with_name(f"said-{os.environ['RANK']}").open("a") as file:
            file.writelines(f"{text!r}\\n" for text in texts)
    return [len(set(text)) / 6 for text in texts]
"""
CASES = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo", "lora": {}},
    "dr_grpo over both": {"loss_type": "dr_grpo", "num_generations": GROUP, "scale_rewards": "batch"},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
