"""Covers `grpo audit` as a person runs it: the finished run of three steps, from what lies in its folder."""


def test_the_page_is_written_and_named_and_its_completions_were_judged_again(workshop, finished):
    done = workshop.grpo("audit", finished, "--output", "audited/first.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "audited/first.html"
    page = (workshop.folder / "audited/first.html").read_text(encoding="utf-8")
    assert "24 completions of its tables are counted; 24 more" in page
    assert '<th scope="row">the strict rule of evaluations</th><td class="n">24</td>' in page
    assert page.count('<svg class="chart"') == page.count('<svg class="bars"') == 5


def test_a_judge_that_is_not_there_is_not_asked_and_an_unknown_run_is_refused(workshop, finished, refused):
    assert "leave out --ask" in refused(workshop.grpo("audit", finished, "--ask", "3"))
    assert "nobody" in refused(workshop.grpo("audit", "nobody"))
