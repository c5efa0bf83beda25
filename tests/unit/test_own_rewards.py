"""Covers a reward of one's own, `path/to/file.py:function`: found, and each way in which it can break its contract."""

import pytest

from qwen_vl_grpo import rewards
from qwen_vl_grpo.errors import RewardError

COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("a", "bb")]


@pytest.fixture
def own(tmp_path):
    """Write a reward file with this body in its function, and return its reference."""

    def write(body: str) -> str:
        (tmp_path / "mine.py").write_text(f"def brevity(completions, answer, **_):\n    {body}\n", encoding="utf-8")
        return f"{tmp_path / 'mine.py'}:brevity"

    return write


def score(reference):
    return rewards.find(reference)(completions=COMPLETIONS, answer=["a", "b"], prompts=[[], []])


def test_an_own_reward_scores_under_its_own_name(own):
    reference = own("return [-len(text[0]['content']) for text in completions]")
    assert score(reference) == [-1.0, -2.0]
    assert rewards.find(reference).__name__ == "brevity"


def test_none_says_could_not_be_judged_and_passes(own):
    assert score(own("return [None, 1]")) == [None, 1.0]


def test_an_own_reward_gets_the_columns_of_its_rows(own):
    assert score(own("return [float(gold == 'a') for gold in answer]")) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [1.0]", "reward brevity: returned 1 scores for 2 completions"),
        ("return [1.0, float('nan')]", "reward brevity: returned nan; a score is a finite number"),
        ("return [1.0, float('inf')]", "reward brevity: returned inf; a score is a finite number"),
        ("return ['1', '2']", "reward brevity: returned '1'; a score is a finite number"),
        ("return [[1.0], [2.0]]", "reward brevity: returned "),
        ("return None", "reward brevity: "),
        ("return 1 / 0", "reward brevity: raised ZeroDivisionError: division by zero; return None for what cannot be judged"),
    ],
)
def test_a_broken_contract_is_said_by_name(own, body, said):
    with pytest.raises(RewardError) as error:
        score(own(body))
    assert said in str(error.value)


def test_a_missing_file_is_named_with_the_place_where_paths_start(tmp_path):
    with pytest.raises(RewardError, match=r"there is no file .*nowhere\.py \(paths start where the command is run\)"):
        rewards.find(f"{tmp_path / 'nowhere.py'}:brevity")


def test_a_missing_function_is_named(own):
    with pytest.raises(RewardError, match=r"mine\.py defines no function 'brevty'"):
        rewards.find(own("return []").replace(":brevity", ":brevty"))


@pytest.mark.parametrize(("text", "kind"), [("import nothing_like_this", "ModuleNotFoundError"), ("def broken(:", "SyntaxError")])
def test_a_file_that_cannot_be_imported_gives_the_reason(tmp_path, text, kind):
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(RewardError, match=rf"mine\.py cannot be imported \({kind}: "):
        rewards.find(f"{tmp_path / 'mine.py'}:brevity")
