"""Alerts reach every Alertmanager, none of which delays the others; no error shows a secret."""

from __future__ import annotations

import datetime
import itertools
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.alerts import sender
from specwatch.alerts.alert import Alert, PostError, PostReason
from specwatch.alerts.client import AlertPost
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.guard import Alertmanager
from specwatch.status import PagerStatus
from tests.alerts.receiver import Receiver
from tests.fixtures import CERTIFICATE, Log, events
from tests.hostile import deaf_port, wait_for

LOW = Alert(
    {"alertname": "SpecwatchIncident", "target": "chat-70b"}, {"summary": "α = 0.12"}, 900.0
)
HELD = Alert({"alertname": "SpecwatchHeld", "target": "chat-70b"}, {}, 950.0)


Send = Callable[..., Alertmanagers]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def send_to(monkeypatch: pytest.MonkeyPatch, log: Log) -> Iterator[Send]:
    """``send_to(*urls, now, **section)``: Alertmanagers that are closed at the end."""
    monkeypatch.setattr(sender, "FIRST_DELAY", 0.01)
    made: list[Alertmanagers] = []

    def made_for(
        *urls: str, now: Callable[[], float] = lambda: 1000.0, **section: Any
    ) -> Alertmanagers:
        resend = section.pop("resend", 60.0)
        options = {"timeout": "5s", **section}
        known = Alertmanager(urls=urls, **options).model_copy(update={"resend": resend})
        made.append(Alertmanagers(known, now=now))
        return made[-1]

    yield made_for
    for alertmanagers in made:
        alertmanagers.close(0.1)


def only(alertmanagers: Alertmanagers) -> PagerStatus:
    (delivery,) = alertmanagers.status()
    return delivery


def failed(alertmanagers: Alertmanagers) -> PagerStatus:
    """How delivering an alert has failed."""
    alertmanagers.set([LOW])
    wait_for(lambda: only(alertmanagers).error)
    return only(alertmanagers)


def refused(url: str, **section: Any) -> PostError:
    """Why one message is not accepted."""
    post = AlertPost(Alertmanager(urls=[url], **section), url)
    with pytest.raises(PostError) as failure:
        post.send([])
    post.close()
    return failure.value


def seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


def test_an_alert_is_posted_as_the_v2_api_wants_it(receiver: Receiver, send_to: Send) -> None:
    alertmanagers = send_to(receiver.url + "/", labels={"team": "ml", "target": "overruled"})
    alertmanagers.set([LOW])
    wait_for(lambda: only(alertmanagers).sent)
    ((path, headers, body),) = receiver.asked
    assert path == "/api/v2/alerts"
    assert headers["Content-Type"] == "application/json"
    assert body == [
        {
            "labels": {"alertname": "SpecwatchIncident", "target": "chat-70b", "team": "ml"},
            "annotations": {"summary": "α = 0.12"},
            "startsAt": "1970-01-01T00:15:00.000Z",
            "endsAt": "1970-01-01T00:20:40.000Z",
        }
    ]
    delivery = only(alertmanagers)
    assert (delivery.url, delivery.firing, delivery.behind) == (receiver.url, 1, False)
    assert (delivery.last_success, delivery.failures) == (1000.0, {})


def test_the_same_alerts_are_not_sent_again_before_their_time(
    receiver: Receiver, send_to: Send
) -> None:
    """Nor because of a number in an annotation, which changes all the time."""
    alertmanagers = send_to(receiver.url)
    alertmanagers.set([LOW])
    wait_for(lambda: only(alertmanagers).sent)
    for _ in range(20):
        alertmanagers.set([Alert(LOW.labels, {"summary": "α = 0.13"}, 900.0)])
    alertmanagers.set([LOW, HELD])
    wait_for(lambda: only(alertmanagers).sent == 2)
    assert [set(message) for message in receiver.messages()] == [
        {"SpecwatchIncident"},
        {"SpecwatchIncident", "SpecwatchHeld"},
    ]
    assert receiver.connections == 1


def test_what_fires_is_repeated_with_an_end_that_moves(receiver: Receiver, send_to: Send) -> None:
    """So that it ends by itself, four times later, when nobody repeats it any more."""
    clock = map(float, itertools.count(1000)).__next__
    alertmanagers = send_to(receiver.url, now=clock, resend=0.02)
    alertmanagers.set([LOW])
    wait_for(lambda: len(receiver.asked) >= 2)
    first, second = (message["SpecwatchIncident"]["endsAt"] for message in receiver.messages()[:2])
    assert 1000.08 <= seconds(first) < seconds(second)


def test_one_that_hangs_delays_neither_the_caller_nor_the_others(
    receiver: Receiver, send_to: Send
) -> None:
    with Receiver() as hung:
        hung.open.clear()
        alertmanagers = send_to(hung.url, receiver.url, timeout="30s")
        alertmanagers.set([LOW])
        wait_for(lambda: hung.asked)
        alertmanagers.set([HELD])
        wait_for(lambda: not alertmanagers.status()[1].behind)
        stuck, well = alertmanagers.status()
        assert (stuck.behind, stuck.last_success, well.last_success) == (True, None, 1000.0)
        assert "SpecwatchHeld" in receiver.messages()[-1]
        hung.open.set()
        wait_for(lambda: not alertmanagers.status()[0].behind)
        assert set(hung.messages()[-1]) == {"SpecwatchIncident", "SpecwatchHeld"}


def test_a_failed_message_is_sent_again_with_the_latest_alerts(
    receiver: Receiver, send_to: Send, log: Log
) -> None:
    receiver.status = 500
    alertmanagers = send_to(receiver.url)
    alertmanagers.set([LOW])
    wait_for(lambda: only(alertmanagers).failures.get(PostReason.HTTP_STATUS, 0) >= 2)
    alertmanagers.set([])
    assert only(alertmanagers).behind
    assert only(alertmanagers).failing_since == 1000.0
    receiver.status = 200  # also for a message that was under way before
    wait_for(lambda: not only(alertmanagers).behind)
    delivery = only(alertmanagers)
    assert (delivery.error, delivery.failing_since) == (None, None)
    assert seconds(receiver.messages()[-1]["SpecwatchIncident"]["endsAt"]) == 1000.0
    (warning,) = events(log, "alerts_not_delivered")
    assert (warning["url"], warning["reason"]) == (receiver.url, "http_status")
    assert len(events(log, "alerts_delivered_again")) == 1


def test_delays_between_attempts_grow_to_a_limit(
    receiver: Receiver, send_to: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LONGEST_DELAY", 0.04)
    receiver.status = 503
    alertmanagers = send_to(receiver.url)
    (one,) = alertmanagers._senders
    seen: list[float] = []
    failed_as_before = one._failed

    def failed_then(error: Any) -> None:
        failed_as_before(error)
        seen.append(one._delay)

    monkeypatch.setattr(one, "_failed", failed_then)
    alertmanagers.set([LOW])
    wait_for(lambda: len(seen) >= 5)
    assert seen[:5] == [0.01, 0.02, 0.04, 0.04, 0.04]


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        (400, PostReason.REJECTED, "answered 400 (start time must be before end time)"),
        (401, PostReason.REJECTED, "give credentials: bearer_token_file or basic_auth"),
        (404, PostReason.REJECTED, "is this the base URL of an Alertmanager"),
        (302, PostReason.HTTP_STATUS, "a redirect is not followed"),
        (429, PostReason.HTTP_STATUS, "answered 429"),
        (500, PostReason.HTTP_STATUS, "answered 500"),
    ],
)
def test_a_refusal_is_described(
    receiver: Receiver, status: int, reason: PostReason, sentence: str
) -> None:
    receiver.status = status
    receiver.answer = "start time must\nbe before end time" if status == 400 else "x" * 100_000
    refusal = refused(receiver.url)
    assert refusal.reason == reason
    assert sentence in str(refusal)
    assert len(str(refusal)) < 600


def test_an_alertmanager_that_was_away_gets_the_alerts_when_it_is_back(send_to: Send) -> None:
    with Receiver() as gone:
        port = gone.server_address[1]
    alertmanagers = send_to(gone.url)
    delivery = failed(alertmanagers)
    assert set(delivery.failures) == {PostReason.REFUSED}
    assert delivery.error == (f"nothing listens at {gone.url}; is Alertmanager up, on this port?")
    with Receiver(port=port) as back:
        wait_for(lambda: only(alertmanagers).sent)
        assert set(back.messages()[0]) == {"SpecwatchIncident"}


def test_a_server_that_never_answers_is_given_up_in_time(send_to: Send) -> None:
    with deaf_port() as port, Receiver() as hung:
        hung.open.clear()
        alertmanagers = send_to(f"http://127.0.0.1:{port}", hung.url, timeout="100ms")
        alertmanagers.set([LOW])
        wait_for(lambda: all(delivery.error for delivery in alertmanagers.status()))
        for delivery in alertmanagers.status():
            assert set(delivery.failures) == {PostReason.TIMEOUT}
            assert "did not answer within 0.1 s" in str(delivery.error)


def test_an_unknown_host_is_unreachable() -> None:
    failure = refused("http://alertmanager.invalid:9093")
    assert failure.reason == PostReason.UNREACHABLE
    assert "cannot reach http://alertmanager.invalid:9093: " in str(failure)


@pytest.mark.parametrize("trusted", ["ca_file", "insecure_skip_verify"])
def test_a_certificate_is_trusted_when_the_configuration_says_so(
    server_tls: ssl.SSLContext, send_to: Send, trusted: str
) -> None:
    how = {trusted: str(CERTIFICATE) if trusted == "ca_file" else True}
    with Receiver(tls=server_tls) as secure:
        alertmanagers = send_to(secure.url, **how)
        alertmanagers.set([LOW])
        wait_for(lambda: only(alertmanagers).sent or only(alertmanagers).error)
        assert only(alertmanagers).error is None


def test_an_unknown_certificate_is_refused(server_tls: ssl.SSLContext, send_to: Send) -> None:
    with Receiver(tls=server_tls) as secure:
        alertmanagers = send_to(secure.url)
        delivery = failed(alertmanagers)
        assert set(delivery.failures) == {PostReason.TLS}
        assert "name the authority in ca_file" in str(delivery.error)
        assert secure.asked == []
        # Before the server: a handshake that meets its end leaves a socket to Python's gc.
        alertmanagers.close(60)


def test_a_failure_keeps_no_reference_to_its_cause() -> None:
    """Neither to a connection that was half made, nor to the request and its secrets."""
    with Receiver() as gone:
        pass
    failure = refused(gone.url)
    assert "nothing listens" in str(failure)
    assert (failure.__cause__, failure.__context__) == (None, None)


def test_credentials_are_sent_and_read_anew_for_each_message(
    receiver: Receiver, send_to: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    token = tmp_path / "token"
    token.write_text("first-hunter2\n")
    alertmanagers = send_to(
        receiver.url, bearer_token_file=str(token), headers={"X-Scope-OrgID": "ml"}
    )
    alertmanagers.set([LOW])
    wait_for(lambda: only(alertmanagers).sent)
    token.write_text("second-hunter2\n")
    alertmanagers.set([])
    wait_for(lambda: only(alertmanagers).sent == 2)
    sent = [
        (headers["Authorization"], headers["X-Scope-OrgID"]) for _, headers, _ in receiver.asked
    ]
    assert sent == [("Bearer first-hunter2", "ml"), ("Bearer second-hunter2", "ml")]
    token.unlink()
    delivery = failed(alertmanagers)
    assert set(delivery.failures) == {PostReason.CREDENTIALS}
    assert "alertmanager: cannot read" in str(delivery.error)


@pytest.mark.parametrize(
    "section",
    [
        {"bearer_token_file": "token"},
        {"basic_auth": {"username": "u", "password_file": "token"}},
        {"headers": {"X-Api-Key": "key-hunter2", "Authorization": "Custom hunter2"}},
        {"headers": {"X-Api-Key": " no-header-begins-with-a-space-hunter2"}},
        {"bearer_token_file": "foreign"},
    ],
)
def test_no_error_shows_a_secret(
    receiver: Receiver, section: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one in which the server repeats what it was sent."""
    (tmp_path / "token").write_text("token-hunter2")
    (tmp_path / "foreign").write_text("пароль-hunter2")
    monkeypatch.chdir(tmp_path)
    receiver.status, receiver.echo = 401, True
    failure = refused(receiver.url, **section)
    shown = f"{failure} {failure!r}"
    assert "alertmanager: " in shown or "***" in shown
    assert "hunter2" not in shown
    assert "dTp0b2tlbi1odW50ZXIy" not in shown


def test_closing_sends_what_waits(receiver: Receiver, send_to: Send, monkeypatch: Any) -> None:
    """Even when the next attempt is not due for long."""
    monkeypatch.setattr(sender, "FIRST_DELAY", 25.0)
    monkeypatch.setattr(sender, "LONGEST_DELAY", 25.0)
    receiver.status = 500
    alertmanagers = send_to(receiver.url)
    failed(alertmanagers)
    receiver.status = 200
    alertmanagers.close(10)
    assert len(receiver.asked) == 2
    assert not only(alertmanagers).behind


def test_closing_leaves_what_fires_and_logs_what_it_gave_up(
    receiver: Receiver, send_to: Send, log: Log
) -> None:
    with Receiver() as hung:
        hung.open.clear()
        alertmanagers = send_to(receiver.url, hung.url, timeout="30s")
        alertmanagers.set([LOW])
        wait_for(lambda: hung.asked and alertmanagers.status()[0].sent)
        alertmanagers.close(0.05)
    (message,) = receiver.messages()
    assert seconds(message["SpecwatchIncident"]["endsAt"]) == 1240.0
    (warning,) = events(log, "alerts_given_up")
    assert (warning["url"], warning["detail"]) == (hung.url, "no answer in time")


def test_after_a_reload_another_alertmanager_gets_what_fires(
    receiver: Receiver, send_to: Send
) -> None:
    """The former one gets what it still misses; the same section again changes nothing."""
    with Receiver() as former:
        former.status = 500
        alertmanagers = send_to(former.url)
        failed(alertmanagers)
        former.status = 200
        section = Alertmanager(urls=[receiver.url])
        alertmanagers.configure(section)
        wait_for(lambda: len(former.asked) >= 2)
        alertmanagers.set([LOW])
        alertmanagers.configure(section)
        wait_for(lambda: only(alertmanagers).sent)
        assert set(receiver.messages()[0]) == {"SpecwatchIncident"}
        alertmanagers.configure(None)
        assert alertmanagers.status() == ()


def test_without_alerts_nothing_is_sent(receiver: Receiver, send_to: Send) -> None:
    alertmanagers = send_to(receiver.url)
    alertmanagers.set([])
    alertmanagers.close(5)
    assert receiver.asked == []
    assert not only(alertmanagers).behind
