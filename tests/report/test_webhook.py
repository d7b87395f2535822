"""A webhook gets the answers or the whole report; its address, which is a secret, is never told."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from specwatch.config.report import Webhook
from specwatch.errors import DeliveryError
from specwatch.report.mail_and_webhooks import Hook
from specwatch.report.messages import Outgoing
from specwatch.report.model import Report
from tests.fixtures import CERTIFICATE
from tests.lab.vllm_server import free_port
from tests.report import sample
from tests.report.conftest import outgoing_of
from tests.report.hooks import Receiver


def of(url: str, **keys: Any) -> Hook:
    return Hook(Webhook.model_validate({"url": url, "timeout": "2s", **keys}))


def refused(hook: Hook, outgoing: Outgoing) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        hook.send(outgoing, ())
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    return caught.value


def test_slack_gets_the_answers_as_it_reads_them(outgoing: Outgoing, hook: Receiver) -> None:
    of(hook.url, headers={"X-Scope": "ops"}).send(outgoing, ())
    ((path, headers, body),) = hook.posted
    assert path == "/services/T000/B000/hunter2hunter2"
    assert (headers["Content-Type"], headers["X-Scope"]) == ("application/json", "ops")
    assert body == outgoing.chat
    sections = [block["text"]["text"] for block in body["blocks"] if block["type"] == "section"]
    for model in sample.full().targets:
        assert any(model.answer.sentence.replace(">", "&gt;") in text for text in sections)
        assert model.answer.sentence.replace(">", "&gt;") in body["text"]


def test_another_program_gets_the_whole_report(outgoing: Outgoing, hook: Receiver) -> None:
    of(hook.url, kind="json").send(outgoing, ())
    ((_, _, body),) = hook.posted
    assert msgspec.convert(body, Report) == sample.full()


def test_the_address_is_read_from_its_file_when_it_is_needed(
    outgoing: Outgoing, hook: Receiver, tmp_path: Path
) -> None:
    file = tmp_path / "hook"
    file.write_text("http://127.0.0.1:1/old\n")
    section = Webhook.model_validate({"url_file": file})
    file.write_text(hook.url)
    Hook(section).send(outgoing, ())
    assert len(hook.posted) == 1


def test_hostile_names_cannot_call_anybody(hook: Receiver) -> None:
    outgoing = outgoing_of(sample.hostile())
    of(hook.url).send(outgoing, ())
    text = hook.posted[0][2]["text"]
    assert "<" not in text
    assert "\x1b" not in text
    assert len(text) < 40_000


@pytest.mark.parametrize(
    ("status", "retry", "reply"),
    [
        (500, True, "answered 500 (no hook ***); it may work again later"),
        (429, True, "answered 429 (no hook ***); it may work again later"),
        (404, False, "answered 404 (no hook ***); the webhook does not exist; create one"),
        (403, False, "answered 403 (no hook ***); the webhook is not allowed; create another"),
        (302, False, "answered 302; a redirect is not followed"),
    ],
)
def test_what_it_answers_is_told(
    outgoing: Outgoing, hook: Receiver, status: int, retry: bool, reply: str
) -> None:
    hook.answers, hook.reply = [status], "no hook\n hunter2hunter2"
    error = refused(of(hook.url), outgoing)
    assert reply in str(error)
    assert error.retry is retry
    of(hook.url).send(outgoing, ())
    assert len(hook.posted) == 2


def test_one_that_hangs_is_waited_for_so_long_and_no_longer(
    outgoing: Outgoing, hook: Receiver
) -> None:
    hook.answers = [0]
    section = Webhook.model_validate({"url": hook.url}).model_copy(update={"timeout": 0.1})
    error = refused(Hook(section), outgoing)
    assert "did not answer within 0.1 s" in str(error)
    assert (error.retry, error.sent) == (True, True)


def test_what_is_posted_again_can_be_known_by_its_id(outgoing: Outgoing, hook: Receiver) -> None:
    for _ in range(2):
        of(hook.url).send(outgoing, ())
    for _, headers, _ in hook.posted:
        assert headers["Idempotency-Key"] == headers["X-Specwatch-Delivery"] == outgoing.id


def test_one_that_takes_no_connection_has_nothing_of_it(outgoing: Outgoing) -> None:
    """It may be tried as often as it is down."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        section = Webhook.model_validate({"url": f"https://127.0.0.1:{port}/hunter2hunter2"})
        error = refused(Hook(section.model_copy(update={"timeout": 0.1})), outgoing)
    assert "did not answer" in str(error)
    assert (error.retry, error.sent) == (True, False)


def test_a_certificate_is_trusted_when_the_configuration_says_so(
    outgoing: Outgoing, server_tls: ssl.SSLContext
) -> None:
    with Receiver(server_tls) as hook:
        error = refused(of(hook.url), outgoing)
        assert "no secure connection to https://127.0.0.1:" in str(error)
        assert error.retry is False
        trusting = of(hook.url, ca_file=CERTIFICATE)
        assert trusting.probe(2) == "it can be reached; nothing was posted"
        assert hook.posted == []
        trusting.send(outgoing, ())
        of(hook.url, insecure_skip_verify=True).send(outgoing, ())
        assert len(hook.posted) == 2


def test_a_probe_posts_nothing(outgoing: Outgoing, hook: Receiver) -> None:
    assert of(hook.url).probe(2) == "it can be reached; nothing was posted"
    gone = of(f"http://127.0.0.1:{free_port()}/hunter2hunter2")
    with pytest.raises(DeliveryError, match=r"^nothing listens at http://127\.0\.0\.1:\d+; "):
        gone.probe(2)
    error = refused(gone, outgoing)
    assert str(error).startswith("nothing listens at http://127.0.0.1:")
    assert (error.retry, hook.posted) == (True, [])


def test_a_header_that_cannot_be_sent_is_not_tried_again(
    outgoing: Outgoing, hook: Receiver
) -> None:
    section = Webhook.model_validate({"url": hook.url})
    broken = section.model_copy(update={"headers": {"X-Scope": SecretStr("ops\n")}})
    error = refused(Hook(broken), outgoing)
    assert "cannot be posted to: " in str(error)
    assert str(error).endswith("; correct its address and headers")
    assert (error.retry, hook.posted) == (False, [])
