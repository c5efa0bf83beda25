"""Covers what holds of any input, by examples that Hypothesis makes up: parsers, rewards, configs, cards and batch files.

The examples are the same each time (derandomize), so that a change fails for what it changed.
"""

import csv
import io
import json
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qwen_vl_grpo import actions, answers, config_file, enhancement, identity, items, knowledge, registry, rewards, run_id, segments
from qwen_vl_grpo import config as configs
from qwen_vl_grpo.audit import kept, suspicion
from qwen_vl_grpo.errors import ConfigError, DataError, RegistryError
from qwen_vl_grpo.interfaces import RunCard
from qwen_vl_grpo.judges import checklist, mmmg

settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
settings.load_profile("same")

PIECES = st.sampled_from(
    [
        *answers.TAGS, *answers.THINK_TAGS, "<|im_end|>", "\n", " ", "42", "1,200", "-", ".5", "%", "cm", "(A)", "B", "or", "[", "]",
        "\\frac{", "\\sqrt{", "}", "{", "^2", "\\boxed{", "$", "**", "(1)", "(3) move", "2 to 5", ", ", "and", "x", "=", "\u200b",
        "\u0430", "\ud800", "²", "猫",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=12).map("".join))
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="<>|"), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.integers(-(10**9), 10**9).map(lambda value: Decimal(value) / 1000)
SEGMENTS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 40)).map(lambda pair: (pair[0] / 4, (pair[0] + pair[1]) / 4)), min_size=1, max_size=5
)


@given(TEXTS, TEXTS, st.lists(TEXTS, max_size=4), st.none() | st.integers(0, 15), st.none() | st.sampled_from(["cm", "%", "people"]))
def test_any_two_answers_are_the_same_or_not(given_text, gold, choices, precision, unit):
    assert answers.same(given_text, gold, choices, precision, unit) in (True, False)


@given(NUMBERS, st.sampled_from(["{}", "+{}", " {} ", "**{}**", "$\\boxed{{{}}}$", "The answer is {}.", "{}0", "{} cm", "x = {}"]))
def test_a_number_is_itself_in_every_spelling_and_no_other_number_in_any(number, form):
    text = f"{number:f}" if "." in f"{number:f}" else f"{number:f}.0"
    written = form.format(text) if not (form.startswith("+") and number < 0) else text
    assert answers.same(written, f"{number:f}")
    assert not answers.same(written, f"{number + 1:f}")
    assert not answers.same(f"{written} or {number + 1:f}", f"{number:f}")


@given(PLAIN, PLAIN)
def test_a_form_is_read_and_one_tag_more_makes_it_none(reasoning, answer):
    form = f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    assert answers.strict_answer(form) == answer.strip()
    for tag in answers.TAGS:
        assert answers.strict_answer(form + tag) is None
        assert answers.strict_answer(form.replace(answer + "\n</answer>", answer + tag + "\n</answer>", 1)) is None


@given(st.sets(st.integers(1, 4)), st.sets(st.integers(1, 4)), st.sampled_from([" ", ", ", "\n", " and ", "; "]), st.booleans())
def test_a_set_of_actions_is_read_in_any_order_and_overlap_is_a_share(one, other, between, named):
    choices = ["reach", "grasp", "move", "release"]
    text = between.join(f"({number}) {choices[number - 1]}" if named else f"({number})" for number in sorted(one, reverse=True))
    assert (actions.named(text, choices) or set()) == {str(number) for number in one}
    assert 0 <= actions.overlap(one, other) == actions.overlap(other, one) <= 1


@given(SEGMENTS, SEGMENTS)
def test_segments_are_read_as_they_were_written_and_overlap_is_a_share(one, other):
    assert segments.read(", ".join(f"{start} to {end}" for start, end in one)) == one
    assert segments.overlap(one, one) == pytest.approx(1)
    assert 0 <= segments.overlap(one, other) <= 1 + 1e-9
    assert segments.overlap(one, other) == pytest.approx(segments.overlap(other, one))


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["42", "(1) reach", "2 to 5", "B", "\\frac{1}{2}"]))
def test_a_reward_is_in_its_range_and_looks_at_one_completion_at_a_time(texts, gold):
    for name, reward in rewards.REWARDS.items():
        low, high = rewards.RANGES[name]
        scores = reward(completions=texts, answer=[gold] * len(texts))
        assert all(score is not None and low <= score <= high for score in scores)
        assert scores == [reward(completions=[text], answer=[gold])[0] for text in texts]
        assert scores == reward(completions=[[{"role": "assistant", "content": text}] for text in texts], answer=[gold] * len(texts))


@given(TEXTS, TEXTS)
def test_the_penalties_of_a_rewritten_prompt_are_shares_and_a_copy_is_a_copy(original, rewritten):
    assert 0 <= enhancement.copying(original, enhancement.enhanced(rewritten)) <= 1
    assert enhancement.copying(original, original) == enhancement.copying(original, original.upper() + "!") == 1
    assert enhancement.asks_for_words(original, original) == 0
    assert enhancement.overlength(rewritten, 5) >= enhancement.overlength(rewritten, 60) >= 0
    assert enhancement.quality(original, rewritten) in range(6)


@given(
    st.lists(
        st.tuples(st.sampled_from(["sun", "water", "cloud", "Verdicts", "1. sun", "teapot"]), TEXTS | st.sampled_from([": yes", ": no"]))
    )
)
def test_a_judges_list_is_read_or_refused_and_scores_a_share(lines):
    graph = knowledge.read({"elements": ["sun", "water", "cloud"], "dependencies": ["Causes(sun, cloud)"], "decoys": ["teapot"]})
    text = "\n".join(item + said for item, said in lines)
    assert {*checklist.read(text, ["sun", "water"]).values()} <= {True, False}
    try:
        assert 0 <= knowledge.dice(graph, mmmg.seen_of(graph, text)) <= 1
    except ValueError as error:
        assert "no yes or no" in str(error)


@given(TEXTS, TEXTS, st.sampled_from([{}, {"answer": "42"}, {"answer": "B", "choices": ["3", "4"]}, {"original_prompt": "a cat"}]))
def test_a_rule_of_the_audit_says_why_or_nothing(prompt, completion, gold):
    seen = suspicion.look(kept.Completions({}, None))
    found = suspicion.reasons(kept.Kept("step 1", prompt, completion, {}, 1.0, gold=gold), seen)
    assert all(isinstance(said, str) and said for said in found.values())


KEYS = [*configs.RunConfig.model_fields]
SECTIONS = [
    f"{name}.{key}"
    for name in ("lora", "data", "evaluation", "tracking", "task", "judge", "renderer", "trl", "placement")
    for key in ("r", "name", "limit", "x")
]


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), JSON, max_size=4))
def test_a_config_is_read_or_refused_in_one_sentence_that_names_the_key(changes):
    try:
        config = configs.check({"run_id": "property"} | changes)
    except ConfigError as error:
        assert str(error).strip()
    else:
        again = configs.check(json.loads(json.dumps(config.model_dump(mode="json"))))
        assert (again, identity.digest(again), identity.differences(again, config)) == (config, identity.digest(config), [])


@given(st.sampled_from(KEYS + SECTIONS) | st.text(max_size=12), JSON.map(json.dumps) | st.text(max_size=12))
def test_a_change_on_the_command_line_is_taken_or_refused(key, value):
    raw = {"run_id": "property"}
    try:
        config_file.override(raw, f"{key}={value}")
        configs.check(raw)
    except ConfigError as error:
        assert str(error).strip()


@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))
    | JSON.map(lambda value: json.dumps(value).encode())
)
def test_a_config_file_of_any_bytes_is_a_mapping_or_refused(tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    try:
        assert isinstance(config_file.read(file), dict)
    except ConfigError as error:
        assert str(file) in str(error)


@given(st.text(max_size=70))
def test_a_run_id_is_a_folder_of_its_own_or_refused(tmp_path, name):
    try:
        assert run_id.check_run_id(name) == name
    except ConfigError:
        return
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()
    assert name.isascii() and len(name) <= 63


@given(
    st.dictionaries(st.sampled_from(["metrics", "config", "dataset", "hardware"]), st.dictionaries(st.text(max_size=6), JSON, max_size=3)),
    JSON,
)
def test_a_card_is_read_as_it_was_written_with_what_a_newer_version_added(tmp_path, changes, newer):
    card = RunCard.model_validate({"run_id": "property", "task": "t", "base_model": "b", "from_a_newer_version": newer} | changes)
    registry.write(card, tmp_path)
    assert registry.read(tmp_path).model_dump_json() == card.model_dump_json()


@given(st.integers(0, 400), st.binary(max_size=6))
def test_a_card_with_broken_bytes_is_read_or_refused(tmp_path, place, broken):
    registry.write(RunCard(run_id="property", task="t", base_model="b"), tmp_path)
    file = tmp_path / "run.json"
    content = file.read_bytes()
    file.write_bytes(content[:place] + broken + content[place + len(broken) :])
    try:
        assert isinstance(registry.read(tmp_path), RunCard)
    except RegistryError as error:
        assert str(tmp_path) in str(error)


ROWS = st.lists(
    st.fixed_dictionaries(
        {"prompt": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Z"]), min_size=1, max_size=12)},
        optional={"images": st.lists(st.from_regex(r"[a-z]{1,6}\.png", fullmatch=True), min_size=1, max_size=2)},
    ),
    min_size=1,
    max_size=4,
)


@given(ROWS)
def test_the_same_questions_in_jsonl_and_csv_are_the_same_items(tmp_path, rows):
    (tmp_path / "asked.jsonl").write_text(
        "".join(json.dumps({"id": place} | row) + "\n" for place, row in enumerate(rows)), encoding="utf-8"
    )
    written = io.StringIO()
    table = csv.DictWriter(written, ["id", "prompt", "images"])
    table.writeheader()
    table.writerows({"id": place, "prompt": row["prompt"], "images": ";".join(row.get("images", []))} for place, row in enumerate(rows))
    (tmp_path / "asked.csv").write_text(written.getvalue(), encoding="utf-8", newline="")
    for name in ("asked.jsonl", "asked.csv"):
        read = items.read(str(tmp_path / name), None).items
        assert [(item.id, item.prompt, item.images, item.error) for item in read] == [
            (str(place), row["prompt"], row.get("images", []), None) for place, row in enumerate(rows)
        ]


@given(
    st.sampled_from(["asked.jsonl", "asked.csv"]),
    st.binary(max_size=60)
    | st.lists(JSON | st.dictionaries(st.sampled_from(["id", "custom_id", "prompt", "body", "image", "videos"]), JSON), max_size=3).map(
        lambda rows: "\n".join(map(json.dumps, rows)).encode()
    ),
)
def test_a_batch_file_of_any_bytes_is_items_with_ids_of_their_own_or_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    try:
        read = items.read(str(tmp_path / name), None).items
    except DataError as error:
        assert name in str(error)
    else:
        assert len({item.id for item in read}) == len(read)
        assert all(bool(item.error) != bool(item.messages) for item in read)
