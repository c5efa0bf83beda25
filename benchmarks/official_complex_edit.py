"""Runs Complex-Edit's published evaluation on made-up answers of a judge; tests/fixtures/complex_edit_scores.jsonl is what it says.

    git clone https://github.com/UCSC-VLAA/Complex-Edit.git CHECKOUT && git -C CHECKOUT checkout 3502eaa
    pip install openai datasets loguru tenacity tqdm pillow pydantic
    python benchmarks/official_complex_edit.py CHECKOUT

eval.py is run as it is and none of it is copied. Its OpenAI client asks a server of this machine, which knows a picture by its first
pixel and gives the answers made up for it; its data set is replaced by one of that many pictures. One process keeps the order of
results that the published code assumes (with more it mixes the pictures' results up).
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import io
import json
import os
import platform
import random
import runpy
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image

OUT = Path(__file__).resolve().parents[1] / "tests/fixtures/complex_edit_scores.jsonl"
ROWS, SEED, VOTES, VOTES_A_CALL = 120, 8, 3, 2
REASONS = (
    "The hat is there.",
    "Nothing was changed.",
    'The sky is "brighter",\nbut a roof is gone.',
    "Give 10/10.",
    "帽子 is red, as asked.",
    "",
)
PACKAGES = ("openai", "pydantic")


def main() -> None:
    """Write a line about the run, a line for each picture, and one for each text that is an answer or is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of UCSC-VLAA/Complex-Edit")
    checkout = parser.parse_args().checkout.resolve()
    chance = random.Random(SEED)
    rows = [{kind: [answer(chance, kind) for _ in range(VOTES)] for kind in ("alignment", "quality")} for _ in range(ROWS)]
    tried: list[dict[str, Any]] = [{"kind": kind, "answer": text} for kind in ("alignment", "quality") for text in doubtful(chance, kind)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(rows, tried))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "NO_PROXY": "127.0.0.1"}
    sys.path.insert(0, str(checkout))
    for row, scores in zip(rows, published(checkout), strict=True):
        row |= scores
    for number, row in enumerate(tried):
        row["accepted"] = accepted(number, row["kind"])
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    head = {"scorer": "UCSC-VLAA/Complex-Edit, eval.py and complex_edit/", "commit": commit, "python": platform.python_version()}
    head |= {name: importlib.metadata.version(name) for name in PACKAGES}
    head |= {"how": f"benchmarks/official_complex_edit.py; answers are made up, seed {SEED}, {VOTES} votes a picture"}
    OUT.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in [head, *rows, *tried]), encoding="utf-8")


def published(checkout: Path) -> list[dict[str, float]]:
    """What eval.py writes of each picture: the three averages and their mean, `overall`."""
    import datasets

    pictures = [Image.new("RGB", (8, 8), (number % 256, number // 256, 0)) for number in range(ROWS)]

    class Rows(list[dict[str, Any]]):
        def __getitem__(self, name: Any) -> Any:
            return [row[name] for row in self] if isinstance(name, str) else super().__getitem__(name)

    edit = {"compound": [{"compound_instruction": "Add a red hat."}]}
    datasets.load_dataset = lambda *_, **__: {"test_real": Rows({"image": picture, "edit": edit} for picture in pictures)}
    with tempfile.TemporaryDirectory() as folder:
        for number, picture in enumerate(pictures):
            picture.save(Path(folder, f"{number:04}.png"))
        asked = ["-p", folder, "-c", "1", "-n", str(VOTES), "-m", str(VOTES_A_CALL), "--num-processes", "1"]
        sys.argv = ["eval.py", *asked]
        runpy.run_path(str(checkout / "eval.py"), run_name="__main__")
        said = [json.loads(Path(folder, "overall", f"{number:04}.json").read_text(encoding="utf-8")) for number in range(ROWS)]
    return [{name: value for name, value in one.items() if name != "instruction"} for one in said]


def accepted(number: int, kind: str) -> bool:
    """Whether the published client and answer form take a text for an answer; one that they refuse they ask for again."""
    from complex_edit.eval import alignment, quality  # type: ignore[import-not-found] - of the checkout
    from complex_edit.utils.openai import CLIENT_OPENAI  # type: ignore[import-not-found]

    form = alignment.CoTAlignment if kind == "alignment" else quality.PerceptualQuality
    try:
        messages = [{"role": "user", "content": f"tried {number}"}]
        said = CLIENT_OPENAI.beta.chat.completions.parse(model="any", messages=messages, response_format=form)
    except ValueError:
        return False
    return said.choices[0].message.parsed is not None


def answer(chance: random.Random, kind: str) -> str:
    """One answer in the published form, spaced and ordered in one of several ways."""
    grades = [str(chance.randint(*chance.choice([(0, 10), (6, 10), (0, 3)]))) for _ in range(2)]
    held = {"reasoning": chance.choice(REASONS), "instruction_following": grades[0], "identity_preservation": grades[1]}
    if kind == "quality":
        held = {"perceptual_quality": grades[0]}
    names = list(held)
    if chance.random() < 0.2:
        chance.shuffle(names)
    return json.dumps({name: held[name] for name in names}, indent=chance.choice([None, None, 2]), ensure_ascii=chance.random() < 0.5)


def doubtful(chance: random.Random, kind: str) -> list[str]:
    """Answers as judges break them, and a few that are whole."""
    whole = json.loads(answer(chance, kind))
    grade = "instruction_following" if kind == "alignment" else "perceptual_quality"
    changed = [
        json.dumps(whole | {grade: value}) for value in ("11", "-1", "8.5", "eight", "7/10", " 7", "07", "", 7, 7.0, True, None, [7], "10")
    ]
    text = json.dumps(whole)
    missing = json.dumps({name: value for name, value in whole.items() if name != grade})
    other = json.dumps({"perceptual_quality" if kind == "alignment" else "instruction_following": "7"})
    more = json.dumps(whole | {"confidence": "high"})
    rest = [
        text,
        f" {text}\n",
        text[: len(text) // 2],
        text[:-1],
        f"```json\n{text}\n```",
        f"Sure! {text}",
        f"[{text}]",
        missing,
        other,
        more,
    ]
    return [*changed, *rest, "", "null", "7", "11/10", "I would give this picture a seven.", "{}", text.replace('"', "'")]


def handler(rows: list[dict[str, Any]], tried: list[dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    """An endpoint that answers in order what was made up for a picture, or one of the texts that are tried."""
    given: dict[tuple[int, str], int] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = asked["messages"][-1]["content"]
            if isinstance(content, str):
                texts = [tried[int(content.split()[1])]["answer"]]
            else:
                pictures = [part["image_url"]["url"].split(",", 1)[1] for part in content if part["type"] == "image_url"]
                pixel = Image.open(io.BytesIO(base64.b64decode(pictures[-1]))).convert("RGB").getpixel((0, 0))
                number, kind = pixel[0] + 256 * pixel[1], "alignment" if len(pictures) == 2 else "quality"  # type: ignore[index]
                first = given.get((number, kind), 0)
                given[number, kind] = first + asked["n"]
                texts = rows[number][kind][first : first + asked["n"]]
            choices = [
                {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                for index, text in enumerate(texts)
            ]
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 0}}
            body = json.dumps(
                {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": choices, "usage": usage}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
