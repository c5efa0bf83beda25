"""Covers whether the services of a run are reached, against a server on this machine: its answers, its silence and its clock."""

import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qwen_vl_grpo import network


class Service(BaseHTTPRequestHandler):
    ahead, status, seen = 0.0, 200, []

    def do_HEAD(self):
        Service.seen.append(dict(self.headers))
        self.send_response_only(self.status)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def service(monkeypatch):
    """A service that stands for the Hub and for W&B."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for variable in ("HF_HUB_OFFLINE", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    Service.ahead, Service.status, Service.seen = 0.0, 200, []
    yield address
    server.shutdown()
    server.server_close()


def asked(config):
    return {finding.name: finding for finding in network.reachable(config)}


@pytest.mark.parametrize("status", [200, 404, 403])
def test_any_answer_means_that_a_service_is_reached_and_no_token_is_sent(config_of, service, status):
    Service.status = status
    found = asked(config_of(tracking={"report_to": "wandb"}))
    assert [finding.verdict for finding in found.values()] == ["ok"] * 3
    assert service in found["Hub"].found
    assert "HF_TOKEN is set" in found["Hub"].found
    assert "no WANDB_API_KEY" in found["W&B"].found
    assert len(Service.seen) == 2
    assert "hf_secret" not in str(Service.seen) + str(found)


@pytest.mark.parametrize(("ahead", "said"), [(600, "behind"), (-600, "ahead")])
def test_a_clock_that_is_wrong_is_a_warning(config_of, service, ahead, said):
    Service.ahead = ahead
    found = asked(config_of())["clock"]
    assert found.verdict == "warn"
    assert found.figures["seconds"] == pytest.approx(ahead, abs=3)
    assert said in found.found


def test_a_service_that_is_not_there_is_a_warning_with_the_way_out(config_of, service, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = asked(config_of(tracking={"report_to": "none"}))
    assert found["Hub"].verdict == "warn"
    assert "http://127.0.0.1:9 is not reached from here" in found["Hub"].found
    assert "HF_HUB_OFFLINE=1" in found["Hub"].remedy
    assert "clock" not in found


def test_an_address_that_is_none_is_told(config_of, service, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "huggingface")
    assert asked(config_of())["Hub"].verdict == "warn"


def test_what_is_offline_by_a_setting_is_not_asked(config_of, service, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = asked(config_of(tracking={"report_to": "wandb"}))
    assert [finding.verdict for finding in found.values()] == ["ok", "ok"]
    assert Service.seen == []


def test_the_endpoint_of_a_judge_is_asked_too(config_of, service, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = asked(config_of(judge={"name": "complex_edit", "base_url": f"{service}/v1"}))["judge"]
    assert found.verdict == "ok" and "OPENAI_API_KEY is set" in found.found
    assert "sk-secret" not in str(Service.seen) + str(found)
    away = asked(config_of(judge={"name": "complex_edit", "base_url": "http://127.0.0.1:9/v1"}))["judge"]
    assert away.verdict == "warn" and "judge.base_url" in away.remedy
    assert "judge" not in asked(config_of(judge={"name": "clip"}))
