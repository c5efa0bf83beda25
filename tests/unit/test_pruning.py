"""Covers disk given back: what a run keeps when it is pruned or deleted, and what is refused."""

import shutil

import pytest

from qwen_vl_grpo import attempts, checkpoints, index, pruning, registry
from qwen_vl_grpo.errors import RegistryError
from qwen_vl_grpo.interfaces import RunCard

WEIGHTS = ("adapter_model.safetensors", "adapter_config.json", "trainer_state.json", "additional_chat_templates/a.jinja")
TO_RESUME = ("optimizer.pt", "rng_state.pth", "training_args.bin", "global_step10/rank_0.pt")


@pytest.fixture
def run(config_of, tmp_path):
    """A run with checkpoints of these steps, each written as a run writes it; returns its card and folder."""

    def make(*steps, run_id="v1", state="finished", **card):
        config = config_of(run_id=run_id, output_dir=str(tmp_path / "outputs"), max_steps=30)
        folder = registry.claim(config)
        for step in steps:
            aside = folder / checkpoints.ASIDE / f"checkpoint-{step}"
            aside.mkdir(parents=True)
            for name in WEIGHTS + TO_RESUME:
                (aside / name).parent.mkdir(exist_ok=True)
                (aside / name).write_text(f"{name} of step {step}")
            checkpoints.publish(aside, folder)
            aside.parent.rmdir()
        last = f"checkpoint-{steps[-1]}" if steps else None
        files = registry.hash_files(folder, last) if last else {}
        made = RunCard(
            run_id=run_id, task="t", base_model="b", state=state, checkpoint=last, checkpoint_files=files,
            config=config.model_dump(mode="json"), **card,
        )  # fmt: skip
        registry.write(made, folder)
        return made, folder

    return make


def below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_finished_run_keeps_the_weights_that_answer(run):
    card, folder = run(10, 20, 30)
    spare = pruning.spare(card, folder)
    assert {path.name for path in spare.paths} == {"checkpoint-10", "checkpoint-20", *(name.split("/")[0] for name in TO_RESUME)}
    assert spare.size == sum(path.stat().st_size for path in folder.glob("checkpoint-[12]0/**/*") if path.is_file()) + sum(
        (folder / "checkpoint-30" / name).stat().st_size for name in TO_RESUME
    )
    assert spare.text().endswith("keeps the weights of checkpoint-30")
    pruning.prune(spare)
    assert below(folder) == sorted(["run.json", *(f"checkpoint-30/{name}" for name in (*WEIGHTS, checkpoints.HASHES))])
    registry.verify_files(*registry.resolve("v1"))
    assert checkpoints.whole(folder / "checkpoint-30")
    assert pruning.spare(*registry.resolve("v1")).paths == ()


def test_looking_deletes_nothing(run):
    card, folder = run(10, 20)
    before = below(folder)
    pruning.spare(card, folder)
    assert below(folder) == before


def test_a_pruned_run_cannot_be_resumed_and_says_how_to_go_on(run, config_of, tmp_path):
    card, folder = run(10, 30)
    pruning.prune(pruning.spare(card, folder))
    longer = config_of(run_id="v1", output_dir=str(tmp_path / "outputs"), max_steps=60)
    with pytest.raises(RegistryError, match=r"was pruned, so its optimizer's state is gone; start a new run .* with init_from"):
        attempts.resumable(longer)
    begins = config_of(run_id="v2", init_from="v1")
    assert attempts.parent(begins) == (registry.read(folder), folder / "checkpoint-30")


def test_a_stopped_run_keeps_what_it_would_be_resumed_from(run, config_of, tmp_path):
    card, folder = run(10, 20, state="interrupted")
    spare = pruning.spare(card, folder)
    assert [path.name for path in spare.paths] == ["checkpoint-10"]
    pruning.prune(spare)
    assert checkpoints.newest_whole(folder) == folder / "checkpoint-20"
    attempts.resumable(config_of(run_id="v1", output_dir=str(tmp_path / "outputs"), max_steps=30))


def test_a_stopped_run_whose_newest_checkpoint_is_broken_keeps_the_one_before_it(run):
    card, folder = run(10, 20, 25, state="failed")
    (folder / "checkpoint-25/optimizer.pt").write_text("broken")
    assert [path.name for path in pruning.spare(card, folder).paths] == ["checkpoint-10"]


def test_a_run_without_a_whole_checkpoint_keeps_everything(run):
    card, folder = run(10, state="failed")
    (folder / "checkpoint-10/optimizer.pt").write_text("broken")
    assert pruning.spare(card.model_copy(update={"checkpoint": None}), folder).paths == ()


def test_a_finished_run_that_lost_its_weights_keeps_its_other_checkpoints(run):
    card, folder = run(10, 20)
    shutil.rmtree(folder / "checkpoint-20")
    assert pruning.spare(card, folder).paths == ()


def test_a_run_that_went_on_in_between_is_not_pruned(run):
    card, folder = run(10, 20)
    spare = pruning.spare(card, folder)
    registry.write(card.model_copy(update={"checkpoint": "checkpoint-10"}), folder)
    before = below(folder)
    with pytest.raises(RegistryError, match="has changed since it was looked at"):
        pruning.prune(spare)
    assert below(folder) == before


def test_the_last_copy_is_not_deleted(run):
    card, folder = run(10)
    with pytest.raises(RegistryError, match="run_id v1: this is its last copy"):
        pruning.refuse_last_copy(card, folder, force=False)
    pruning.refuse_last_copy(card, folder, force=True)


PUBLISHED = {"repo": "me/runs", "commit": "0" * 40, "tag": "run/v1"}


@pytest.mark.parametrize(
    ("published", "safe"), [(PUBLISHED, True), (PUBLISHED | {"tag": "save/v1/10"}, False), ({"repo": "me/runs"}, False), ({}, False)]
)
def test_a_copy_elsewhere_is_a_whole_and_final_one(run, published, safe):
    card, _ = run(10, published=published)
    assert pruning.elsewhere(card) is safe


def test_a_run_in_whose_folder_another_lies_is_not_deleted(run, config_of):
    card, folder = run(10)
    registry.claim(config_of(run_id="inner", output_dir=str(folder)))
    with pytest.raises(RegistryError, match="run inner lies in its folder"):
        pruning.refuse_last_copy(card, folder, force=True)


def test_deleting_takes_the_run_its_aliases_and_its_place_in_the_queue_and_nothing_else(run, tmp_path):
    card, folder = run(10)
    _, other = run(10, run_id="v2")
    index.set_alias("champion", "v1")
    index.set_alias("second", "v2")
    index.queue().mkdir()
    for name in ("v1", "v2"):
        (index.queue() / f"{name}.json").write_text("{}")
    pruning.delete(card, folder)
    assert [path.stem for path in index.queue().iterdir()] == ["v2"]
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["v2"]
    assert (index.known(), index.aliases()) == (["v2"], {"second": "v2"})
    assert registry.resolve("second")[1] == other
