"""Covers a demonstration run, the only kind that a new run of the same id replaces, and replaces whole."""


def test_a_demonstration_run_replaces_itself_and_leaves_nothing_of_the_old_one(workshop, refused):
    first = workshop.train("shown", registry={"demo": True}, max_steps=2)
    assert first.returncode == 0, first.stderr
    neighbour = workshop.folder / "runs/notes.txt"
    neighbour.write_text("mine")
    assert "exists already" in refused(workshop.train("shown"))
    second = workshop.train("shown", registry={"demo": True}, max_steps=1, seed=1)
    assert second.returncode == 0, second.stderr
    card = workshop.card("shown")
    assert (card["state"], card["checkpoint"], card["config"]["seed"]) == ("finished", "checkpoint-1", 1)
    assert [path.name for path in workshop.run_dir("shown").glob("checkpoint-*")] == ["checkpoint-1"]
    assert len([line for line in workshop.metrics("shown") if "reward" in line]) == 1
    assert neighbour.read_text() == "mine"
