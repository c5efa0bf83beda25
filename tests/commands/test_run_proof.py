"""Covers what a run keeps as its proof, and `grpo runs verify`: a process of its own loads the run from its folder by its id."""


def test_a_finished_run_is_verified_or_said_to_have_changed_nothing(workshop, finished):
    kept = workshop.card(finished)["proof"]
    assert len(kept["outputs"]) == len(kept["base_outputs"]) == 4
    assert "proof/items.json" in workshop.card(finished)["checkpoint_files"]
    done = workshop.grpo("runs", "verify", finished)
    verdict = workshop.card(finished)["proof"]["verdict"]
    if kept["changed"]:
        assert (done.returncode, done.stdout, verdict["state"]) == (0, verdict["text"] + "\n", "proved"), done.stderr
    else:
        assert done.returncode == 1
        assert verdict["state"] == "unchanged"
        assert verdict["text"] in done.stderr
        assert "training changed no answer" in (workshop.run_dir(finished) / "training.log").read_text()
