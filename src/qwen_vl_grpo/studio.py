"""The page of `grpo studio`: type a question, see what base and tuned policies make of it, side by side.

It listens on the loopback alone, under its own name alone (a page elsewhere could point a name of its own at this machine), and
its content policy lets the browser ask nothing of anyone else: no telemetry, no fonts, no share link.
"""

from __future__ import annotations

import base64
import io
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

from qwen_vl_grpo import answering, fetching, items
from qwen_vl_grpo.errors import ConfigError, DataError, GrpoError
from qwen_vl_grpo.items import Item
from qwen_vl_grpo.rewards.rendered import KEPT_SIDE
from qwen_vl_grpo.side_by_side import Pair, SideBySide

MOST = 64
"""Questions of a file that the page shows."""
POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'"
STYLE = """
.beside { margin: 0 0 1.25rem; }
.beside .sides { display: grid; grid-template-columns: 1fr 1fr; gap: 0.75rem; margin-bottom: 0.75rem; }
.beside figure { margin: 0; padding: 0.5rem 0.75rem; border: 1px solid var(--border-color-primary); border-radius: 6px; min-width: 0; }
.beside figcaption { font-weight: 600; }
.beside img { max-width: 20rem; width: 100%; image-rendering: auto; margin: 0.25rem 0; }
.beside pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.25rem 0; font-family: inherit; }
.beside .said { opacity: 0.8; font-size: 0.85rem; }
"""
ANSWERS = Environment(autoescape=True).from_string("""
{% for item, pairs in asked %}<section class="beside"><h3>{{ item.prompt }}</h3>
{% for given in item.opened or () %}<img src="{{ data(given.image) }}" alt="What was asked about">{% endfor %}
{% for clip in item.clips or () %}<p class="said">a clip of {{ "%.1f" | format(clip.footage.seconds) }} s</p>{% endfor %}
{% for pair in pairs %}<h4>{{ pair.run_id }}</h4><div class="sides">
{% for name, side in (("base", pair.base), ("tuned", pair.tuned)) %}<figure class="{{ name }}"><figcaption>{{ name }}</figcaption>
{% if side.picture %}<img src="{{ data(side.picture) }}" alt="What was drawn for the answer of {{ name }}">{% endif %}
{% if side.record.completion %}<pre>{{ side.record.completion }}</pre>{% endif %}
<p class="said">{{ side.said }}</p>
</figure>{% endfor %}</div>{% endfor %}</section>{% endfor %}""")


def serve(runs: SideBySide, port: int) -> None:
    """Serve the page until Ctrl-C; raises ConfigError for a port that is taken. Port 0 takes any that is free."""
    import uvicorn

    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port}: 127.0.0.1 does not give it ({error.strerror}); choose another") from None
        app = local(runs)
        print(f"http://127.0.0.1:{line.getsockname()[1]}/ shows {', '.join(runs.run_ids)}; Ctrl-C ends it", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[line])


def local(runs: SideBySide) -> Any:
    """The page as an ASGI application that answers this machine alone."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read on import
    import fastapi
    import gradio
    from gradio.themes import Default
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    theme = Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])  # others are fetched
    app = gradio.mount_gradio_app(
        fastapi.FastAPI(), page(runs), "/", server_name="127.0.0.1", theme=theme, css=STYLE, footer_links=[], ssr_mode=False
    )
    return TrustedHostMiddleware(_with_policy(app), allowed_hosts=["127.0.0.1", "localhost"])


def page(runs: SideBySide) -> Any:
    """The page's parts and what happens on a click."""
    import gradio

    def answered(picked: list[str], asked: Sequence[Item], longest: float, temperature: float) -> Iterator[str]:
        try:
            if not picked:
                raise DataError("pick a run")
            how = answering.How(max_new_tokens=int(longest) or None, temperature=temperature)
            shown: list[tuple[Item, list[Pair]]] = []
            for item, pairs in runs.ask(picked, asked, how):
                shown.append((item, pairs))
                yield ANSWERS.render(asked=shown, data=_data)
        except GrpoError as error:
            raise gradio.Error(str(error), print_exception=False) from None

    def one(picked: list[str], prompt: str, picture: str | None, clip: str | None, longest: float, temperature: float) -> Iterator[str]:
        if not (prompt or "").strip():
            raise gradio.Error("type a prompt", print_exception=False)
        try:
            opened = [fetching.picture(picture)] if picture else []
            clips = [fetching.clip_of(Path(clip).read_bytes())] if clip else []
        except GrpoError as error:
            raise gradio.Error(str(error), print_exception=False) from None
        chat = [{"role": "user", "content": prompt.strip()}]
        item = Item("prompt", chat, [picture] if picture else [], opened=opened, videos=[clip] if clip else [], clips=clips)
        yield from answered(picked, [item], longest, temperature)

    def many(picked: list[str], file: str, longest: float, temperature: float) -> Iterator[str]:
        try:
            asked = items.read((file or "").strip(), None).items
        except GrpoError as error:
            raise gradio.Error(str(error), print_exception=False) from None
        if len(asked) > MOST:
            raise gradio.Error(
                f"{file} holds {len(asked)} questions and the page shows {MOST}; ask with grpo infer --input", print_exception=False
            )
        yield from answered(picked, asked, longest, temperature)

    with gradio.Blocks(title="grpo studio", analytics_enabled=False, delete_cache=(3600, 3600)) as made:
        picked = gradio.CheckboxGroup(runs.run_ids, value=runs.run_ids[:1], label="Runs", elem_id="runs")
        with gradio.Tab("A prompt"):
            with gradio.Row():
                prompt = gradio.Textbox(label="Prompt", lines=3, elem_id="prompt")
                picture = gradio.Image(label="Picture", type="filepath", sources=["upload", "clipboard"], height=180, elem_id="picture")
                clip = gradio.Video(label="Clip", sources=["upload"], height=180, elem_id="clip", visible=runs.watches)
            ask_one = gradio.Button("Ask", variant="primary", elem_id="ask")
        with gradio.Tab("A file of prompts"):
            about = "JSON Lines, CSV or a folder of pictures on this machine, as grpo infer --input takes it"
            file = gradio.Textbox(label="File", info=about, elem_id="file")
            ask_many = gradio.Button("Ask all", variant="primary", elem_id="ask-all")
        with gradio.Row():
            longest = gradio.Number(0, label="Longest answer, in tokens", info="0 takes each run's own", precision=0, minimum=0)
            temperature = gradio.Number(0.0, label="Temperature", info="0 is greedy", minimum=0.0)
        shown = gradio.HTML(elem_id="answers")
        told = {"outputs": shown, "concurrency_limit": 1, "concurrency_id": "policies", "api_visibility": "private"}
        ask_one.click(one, [picked, prompt, picture, clip, longest, temperature], **told)
        ask_many.click(many, [picked, file, longest, temperature], **told)
    return made


def _data(picture: Any) -> str:
    small = picture.copy()
    small.thumbnail((KEPT_SIDE, KEPT_SIDE))
    file = io.BytesIO()
    small.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _with_policy(app: Any) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", POLICY)]
            await send(message)

        await app(scope, receive, sent)

    return answer
