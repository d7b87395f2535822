"""``specwatch report --deliver``, and what ``check-config`` finds out beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.cli import report_delivery
from specwatch.errors import DeliveryError
from specwatch.report.mail_and_webhooks import Hook
from specwatch.store.repository import Store
from tests.cli.conftest import Run, bare_machine, run
from tests.lab.vllm_server import free_port
from tests.report.conftest import StartMail
from tests.report.hooks import Receiver

__all__ = ["bare_machine", "run"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds that a command would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(report_delivery, "_sleep", slept.append)
    return slept


def written(tmp_path: Path, **report: Any) -> Path:
    document: dict[str, Any] = {
        "database": f"sqlite:///{tmp_path}/history.db",
        "targets": [{"url": "http://127.0.0.1:1", "name": "chat"}],
        "report": {"directory": str(tmp_path / "reports"), **report},
    }
    store = Store(document["database"], daemon="gpu-7")
    store.open(1.8e9)
    store.close(1.8e9)
    file = tmp_path / "specwatch.yml"
    file.write_text(json.dumps(document))
    return file


def email(url: str) -> dict[str, Any]:
    return {"smtp": url, "from": "s@example.com", "to": ["ops@example.com"], "timeout": "2s"}


def test_a_report_of_no_history_is_delivered_and_it_is_said_where(
    run: Run, tmp_path: Path, start_mail: StartMail, hook: Receiver
) -> None:
    mail, url = start_mail(), "https://reports.example.com/{name}.html?user=ops"
    file = written(tmp_path, url=url, email=email(mail.url), webhooks=[{"url": hook.url}])
    done = run("report", "--deliver", "--config", file)
    assert (done.exit_code, done.stderr) == (0, "")
    first, page, data, to, posted = done.stdout.splitlines()
    assert first.startswith("report of 7 days, made 20")
    assert page.startswith(f"written: {tmp_path}/reports/report-20")
    assert page.endswith(".html")
    assert data.endswith(".json")
    assert to.startswith("email: delivered ")
    assert to.endswith(" to ops@example.com")
    assert posted.startswith("webhook: delivered ")
    (_, _, message) = mail.box.sent[0]
    assert message["Subject"].startswith("specwatch: nothing was watched, ")
    attached = next(iter(message.iter_attachments()))
    assert attached.get_content().startswith("<!DOCTYPE html>")
    assert "hunter2" not in done.output
    # Mail and chat lead to the report.
    expected = f"https://reports.example.com/{Path(page).name}?user=ops"
    assert f'href="{expected}"' in message.get_body(("html",)).get_content()
    ((_, _, body),) = hook.posted
    assert f"<{expected}|Open the whole report>" in body["blocks"][-1]["text"]["text"]


def test_what_did_not_arrive_is_one_with_the_reason_and_the_remedy(
    run: Run, tmp_path: Path, hook: Receiver, no_waiting: list[float]
) -> None:
    url = f"smtp://127.0.0.1:{free_port()}"
    file = written(tmp_path, email=email(url), webhooks=[{"url": hook.url}])
    done = run("report", "--deliver", "--config", file)
    assert done.exit_code == 1
    failed, remedy = done.stderr.splitlines()
    assert failed == (
        f"email: NOT DELIVERED after 4 attempts: nothing listens at {url}; is it up, on this port?"
    )
    assert remedy.startswith("send what is missing with `specwatch report --deliver --retry`")
    assert no_waiting == [10.0, 30.0, 80.0]
    again = run("report", "--deliver", "--retry", "--config", file, "--json")
    document = json.loads(again.stdout)
    assert (again.exit_code, document["ok"]) == (1, False)
    sent = {channel["channel"]: channel for channel in document["channels"]}
    assert {name: item["attempts"] for name, item in sent.items()} == {"email": 8, "webhook": 1}
    assert sent["email"]["delivered_at"] is None
    assert len(hook.posted) == 1


@pytest.mark.parametrize(("answers", "code"), [([404], 2), ([500] * 4, 1), ([404, *[500] * 4], 1)])
def test_what_is_refused_for_good_is_told_apart_from_what_may_arrive_later(
    run: Run, tmp_path: Path, hook: Receiver, answers: list[int], code: int
) -> None:
    """By the exit code: systemd starts the service again for 1, and not for 2."""
    hook.answers = answers
    hooks = [{"name": "a", "url": hook.url}]
    if answers[1:2] == [500] and answers[0] != 500:
        hooks.append({"name": "b", "url": hook.url})
    done = run("report", "--deliver", "--config", written(tmp_path, webhooks=hooks))
    assert done.exit_code == code
    last = done.stderr.splitlines()[-1]
    assert last.startswith("correct what is said above, and ") is (code == 2)
    assert (
        run("report", "--deliver", "--retry", "--config", tmp_path / "specwatch.yml").exit_code == 0
    )


def test_one_that_never_answers_is_sent_and_never_confirmed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def silent(_: Hook, outgoing: object, __: object) -> None:
        sent.append(outgoing)
        raise DeliveryError("it did not answer", retry=True, sent=True)

    monkeypatch.setattr(Hook, "send", silent)
    file = written(tmp_path, webhooks=[{"url": "http://h/x"}])
    done = run("report", "--deliver", "--config", file)
    assert "webhook: SENT, NEVER CONFIRMED after 2 attempts: " in done.stderr
    document = json.loads(run("report", "--deliver", "--config", file, "--json").stdout)
    assert (done.exit_code, document["ok"], document["channels"][0]["unconfirmed"]) == (
        0,
        True,
        True,
    )
    assert len(sent) == 2


def test_only_files_that_are_there_are_told_of(run: Run, tmp_path: Path) -> None:
    """And those of before are not told of as written, nor as of the period configured since."""
    run("report", "--deliver", "--config", written(tmp_path, formats=["json"]))
    file = written(tmp_path, formats=["html", "json", "md"], since="30d")
    first, *files = run("report", "--deliver", "--config", file).stdout.splitlines()
    assert first.startswith("report of 7 days, made ")
    (only,) = files
    assert only.startswith("kept from 20")
    assert Path(only[only.index("/") :]).is_file()


def test_options_without_effect_are_refused(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path)
    for arguments, message in (
        (["--retry"], "--retry is for --deliver; give both"),
        (["--deliver", "--since", "1d"], "--since and --deliver exclude each other"),
        (["--deliver", "-o", "x.md"], "--output and --deliver exclude each other"),
    ):
        done = run("report", *arguments, "--config", file)
        assert done.exit_code == 2
        assert message in " ".join(done.stderr.split())


def test_without_the_section_it_is_said_how_to_write_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "specwatch.yml"
    file.write_text("targets: [{url: 'http://h'}]\n")
    done = run("report", "--deliver", "--config", file)
    assert done.exit_code == 2
    assert "add the section report, like report: {email:" in done.stderr


def test_with_nothing_to_send_again_it_says_so(run: Run, tmp_path: Path) -> None:
    done = run("report", "--deliver", "--retry", "--config", written(tmp_path))
    assert (done.exit_code, done.stdout.partition(";")[0]) == (0, "there is no report yet")


def test_check_config_tries_each_way_and_sends_nothing(
    run: Run, tmp_path: Path, start_mail: StartMail, hook: Receiver
) -> None:
    mail = start_mail()
    gone = f"http://127.0.0.1:{free_port()}/hunter2hunter2"
    hooks = [{"url": hook.url}, {"name": "gone", "url": gone}]
    file = written(tmp_path, email=email(mail.url), webhooks=hooks)
    done = run("check-config", "--config", file)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[-3:] == [
        f"reports in {tmp_path}/reports: ok, the folder will be made",
        f"mail server {mail.url}: ok, it answers, not encrypted",
        "webhook webhook: ok, it can be reached; nothing was posted",
    ]
    failed = [line for line in lines if line.startswith("webhook gone:")]
    assert failed[0].startswith("webhook gone: FAILED: nothing listens at http:")
    assert lines.index(failed[0]) < len(lines) - 3
    assert "hunter2" not in done.output
    assert (mail.box.sent, hook.posted) == ([], [])
    assert not (tmp_path / "reports").exists()
