"""Covers `grpo probe` as a command: a run is probed by its id, and a config whose probe is missing is refused with the command to run."""


def test_a_run_is_probed_by_its_id_and_the_terminal_shows_how_often_it_solves_its_rows(workshop, finished):
    config = workshop.config("probing", data={"limit": 6}, rewards=[])
    done = workshop.grpo("probe", finished, config, "--k", "2")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("solve rates of 6 rows, at least 2 completions each at temperature 1"), done.stdout
    assert "of the groups of 4 all right or all wrong" in done.stdout and "too high" in done.stdout
    stored = said[-1].split("stored in ")[1]
    assert "data.filter: [0.1, 0.9] keeps" in said[-1] and "/probes/first-" in stored
    assert len((workshop.folder / stored).read_text(encoding="utf-8").splitlines()) == 6


def test_a_filter_without_its_probe_is_refused_before_anything_is_loaded(workshop, refused):
    said = refused(workshop.train("unprobed", data={"filter": [0.1, 0.9]}))
    assert "data.filter: measure them with `grpo probe tiny-qwen2.5-vl --config CONFIG`" in said
    assert not workshop.run_dir("unprobed").exists()
