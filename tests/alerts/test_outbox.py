"""What an Alertmanager is told: the latest state, ends included, in words that it takes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.alerts import outbox as outboxes
from specwatch.alerts.alert import Alert, posted
from specwatch.alerts.outbox import Message, Outbox
from specwatch.config.guard import LABEL_NAME

RESEND = 60.0


def alert(name: str, summary: str = "", starts_at: float = 0.0) -> Alert:
    return Alert({"alertname": name}, {"summary": summary}, starts_at)


A, B = alert("a"), alert("b")


def outbox(**options: Any) -> Outbox:
    return Outbox(resend=RESEND, labels=options.pop("labels", {}), **options)


def ends(message: Message | None) -> dict[str, float]:
    """When the alerts in a message end, by their names."""
    bodies: tuple[Any, ...] = message.alerts
    return {body["labels"]["alertname"]: seconds(body["endsAt"]) for body in bodies}


def tell(box: Outbox, now: float) -> None:
    message = box.message(now)
    assert message is not None
    box.delivered(message)


def seconds(moment: Any) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


def test_an_end_is_repeated_for_as_long_as_the_alert_might_live_on() -> None:
    """An Alertmanager whose clock is behind takes the first one for no end."""
    box = outbox()
    box.set([A], 0)
    tell(box, 0)
    assert box.set([], 100)
    tell(box, 100)
    assert not box.is_behind
    assert ends(box.message(100 + 4 * RESEND - 1)) == {"a": 100}
    assert box.message(100 + 4 * RESEND) is None


def test_an_end_that_cannot_be_told_is_given_up_after_an_hour() -> None:
    box = outbox()
    box.set([A], 0)
    box.set([], 100)
    assert ends(box.message(100 + outboxes.REMEMBERED - 1)) == {"a": 100}
    assert box.is_behind
    assert box.message(100 + outboxes.REMEMBERED) is None
    assert not box.is_behind


def test_a_letter_that_arrived_covers_only_what_was_in_it() -> None:
    box = outbox()
    box.set([A], 0)
    message = box.message(0)
    box.set([B], 10)
    assert message is not None
    box.delivered(message)
    assert box.is_behind
    assert ends(box.message(10 + 4 * RESEND)) == {"a": 10, "b": 10 + 8 * RESEND}


def test_an_alert_that_fires_again_has_no_end() -> None:
    box = outbox()
    box.set([A], 0)
    box.set([], 10)
    box.set([A], 20)
    assert ends(box.message(20)) == {"a": 20 + 4 * RESEND}


def test_an_alert_that_keeps_firing_ends_only_then_and_dates_from_its_last_cause() -> None:
    box = outbox()
    kept = Alert({"alertname": "a"}, keep_firing_for=300.0)
    box.set([kept], 0)
    assert not box.set([kept], 100)
    assert not box.set([], 399)
    assert ends(box.message(399)) == {"a": 399 + 4 * RESEND}
    assert box.set([], 400)
    assert ends(box.message(400)) == {"a": 400}
    box.set([kept], 500)
    assert not box.set([], 799)


def test_an_alert_that_a_daemon_finds_late_outlives_its_restart() -> None:
    box = outbox()
    box.set([Alert({"alertname": "a"}, found_after=300.0), B], 0)
    assert ends(box.message(0)) == {"a": 4 * RESEND + 300, "b": 4 * RESEND}
    tell(box, 0)
    box.set([], 100)
    tell(box, 100)
    assert ends(box.message(100 + 4 * RESEND + 299)) == {"a": 100}
    assert box.message(100 + 4 * RESEND + 300) is None


def test_the_latest_words_of_an_alert_are_sent_without_being_news() -> None:
    box = outbox()
    assert box.set([A], 0)
    assert not box.set([alert("a", "later")], 10)
    assert box.set([alert("a", "later"), B], 20)
    message = box.message(20)
    assert message.alerts[0]["annotations"] == {"summary": "later"}


def test_ends_that_nobody_hears_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "MOST_ENDED", 3)
    box = outbox()
    for number in range(10):
        box.set([alert(str(number))], number)
    assert list(ends(box.message(10))) == ["9", "6", "7", "8"]


def test_an_alert_begins_neither_after_now_nor_after_its_end() -> None:
    """A clock was set back: Alertmanager refuses such an alert, and with it the whole message."""
    ahead = alert("a", starts_at=500.0)
    for ends_at in (50.0, 340.0):
        body = posted(ahead, now=100.0, ends_at=ends_at, labels={})
        assert seconds(body["startsAt"]) == min(100.0, ends_at)


def test_labels_of_all_alerts_are_added() -> None:
    box = outbox(labels={"team": "ml", "alertname": "x"})
    box.set([A], 0)
    message = box.message(0)
    assert message.alerts[0]["labels"] == {"alertname": "a", "team": "ml"}


@pytest.mark.parametrize(
    ("given_", "sent"),
    [
        ({"model-name": "m"}, {"model_name": "m"}),
        ({"1st": "m", "": "n"}, {"_1st": "m", "_": "n"}),
        ({"model_name": "kept", "model-name": "lost"}, {"model_name": "kept"}),
        ({"empty": "", "half": "a\ud800b", "grüße": "π"}, {"half": "a?b", "gr__e": "π"}),
    ],
)
def test_labels_are_made_valid(given_: dict[str, str], sent: dict[str, str]) -> None:
    body = posted(Alert(given_, given_), now=0, ends_at=1, labels={})
    assert (body["labels"], body["annotations"]) == (sent, sent)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
def test_every_label_name_is_valid(labels: dict[str, str]) -> None:
    body: Any = posted(Alert(labels), now=0, ends_at=1, labels={})
    assert all(LABEL_NAME.fullmatch(name) for name in body["labels"])
    assert len(body["labels"]) <= len(labels)
