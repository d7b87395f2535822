"""A sample of Alertmanager's configuration for all alerts, those of the daemon's own among them.

It is written by hand and not from values, because what it is for are its comments.
"""

from __future__ import annotations

from textwrap import indent

from specwatch.generate.alerts.files import GENERATED

_SAMPLE = """\
# For Alertmanager 0.25 or later. Copy it, or the parts that you lack, and change what is marked
# with CHANGE; `amtool check-config` says whether it is right, and `amtool config routes test
# severity=critical alertname=SpecwatchDown` where an alert goes.

route:
  # Whatever has no route below. Alerts of one target come in one message; where only Prometheus
  # knows a server, job and instance are what it is called by.
  receiver: chat
  group_by: [target, job, instance]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 12h
  routes:
    # Wakes somebody. By alert, too, so that another trouble of a target whose page somebody has
    # acknowledged pages again.
    - matchers:
        - severity="critical"
      receiver: page
      group_by: [alertname, target, job, instance]
      group_wait: 10s
      repeat_interval: 1h
    # Is looked at in working hours.
    - matchers:
        - severity="warning"
      receiver: chat
    # Is read some time.
    - matchers:
        - severity="info"
      receiver: mailbox
      group_wait: 5m
      group_interval: 1h
      repeat_interval: 1d

# CHANGE: these addresses are placeholders. In place of webhook_configs stand pagerduty_configs,
# opsgenie_configs, slack_configs, email_configs or whatever reaches you; send_resolved tells the
# end, too.
receivers:
  - name: page
    webhook_configs:
      - url: http://127.0.0.1:9095/page
        send_resolved: true
  - name: chat
    webhook_configs:
      - url: http://127.0.0.1:9095/chat
        send_resolved: true
  - name: mailbox
    webhook_configs:
      - url: http://127.0.0.1:9095/mailbox
        send_resolved: false

inhibit_rules:
  # While specwatch is down, what Prometheus still tells of it and of the targets that nobody else
  # watches is old. What the daemon tells by itself is left alone: it ends soon after the daemon.
  # Alertmanager takes a label that both alerts lack as equal; so both must have one that counts.
  - source_matchers:
      - alertname="SpecwatchDown"
      - target!=""
    target_matchers:
      - alertname=~"Speculation.+|LatencySloBurn|Specwatch.+"
      - alertname!~"SpeculationRuleBreach|SpeculationSwitchedOff|SpeculationGuardBlocked"
      - alertname!~"SpeculationGuardFailed|SpecwatchDown"
      - target!=""
    equal: [target]
  - source_matchers:
      - alertname="SpecwatchDown"
      - instance!=""
    target_matchers:
      - alertname=~"Specwatch.+"
      - alertname!="SpecwatchDown"
      - instance!=""
    equal: [job, instance]

  # That speculation makes a server slower says it all, where it is told of all temperatures
  # together. Breaches that the daemon tells by itself have the same label, so they count on both
  # sides.
  - source_matchers:
      - rule="net-negative"
      - temperature=""
    target_matchers:
      - rule=~"low-acceptance|losing-bucket|bucket-loses|not-worth-it|acceptance-shift"
    equal: [target, model_name]

  # That next to nothing is accepted says that little is.
  - source_matchers:
      - rule="garbage"
    target_matchers:
      - rule=~"low-acceptance|losing-bucket|bucket-loses|acceptance-shift"
    equal: [target, model_name, temperature]

  # An error budget that burns fast burns slowly, too.
  - source_matchers:
      - alertname=~"(Vllm)?LatencySloBurn"
      - severity="critical"
    target_matchers:
      - alertname=~"(Vllm)?LatencySloBurn"
      - severity="warning"
    equal: [alertname, target, job, model_name, slo]

  # One objective of one server pages once: by specwatch, where both rule files are loaded. The name
  # of the model is all that they have in common, so only where each knows one server of that name:
  # of several, the one that specwatch tells of must not hide the page of another.
  - source_matchers:
      - alertname="LatencySloBurn"
      - severity="critical"
      - servers="one"
    target_matchers:
      - alertname="VllmLatencySloBurn"
      - servers="one"
    equal: [model_name, slo]
  - source_matchers:
      - alertname="LatencySloBurn"
      - servers="one"
    target_matchers:
      - alertname="VllmLatencySloBurn"
      - servers="one"
      - severity="warning"
    equal: [model_name, slo]

  # What the daemon tells by itself (alertmanager.urls in its configuration) and Prometheus tells
  # from the daemon's metrics is told once, by the daemon, which knows the numbers. Neither side has
  # a temperature where it speaks of all.
  - source_matchers:
      - alertname="SpeculationRuleBreach"
    target_matchers:
      - rule!=""
      - alertname!="SpeculationRuleBreach"
    equal: [target, model_name, rule, temperature]
  - source_matchers:
      - alertname="SpeculationSwitchedOff"
    target_matchers:
      - alertname="SpeculationGuardActed"
    equal: [target]
  - source_matchers:
      - alertname="SpeculationGuardBlocked"
    target_matchers:
      - alertname="SpeculationGuardWaiting"
    equal: [target]
  - source_matchers:
      - alertname="SpeculationGuardFailed"
    target_matchers:
      - alertname="SpeculationGuardHeld"
    equal: [target]

  # Among the rules for stock vLLM metrics.
  - source_matchers:
      - alertname="VllmSpeculationGarbage"
    target_matchers:
      - alertname="VllmSpeculationLowAcceptance"
    equal: [job, instance, model_name]

  # What specwatch knows better than the rules for stock vLLM metrics, where both are loaded. The
  # name of the model is all that they have in common, so an alert of one server hides those of
  # all others with a model of that name, watched or not. For that reason no page is hidden, and
  # all of it is off. CHANGE: take the "#:" away where each name stands for one server.
"""

_OPTIONAL = """\
  - source_matchers:
      - rule=~"net-negative|low-acceptance|garbage"
    target_matchers:
      - alertname="VllmSpeculationLowAcceptance"
    equal: [model_name]
  - source_matchers:
      - rule="tail-widening"
    target_matchers:
      - alertname="VllmTailWidening"
    equal: [model_name]
  - source_matchers:
      - rule="kv-squeeze"
    target_matchers:
      - alertname="VllmKvSqueeze"
    equal: [model_name]
"""


def sample(*, across_servers: bool = False) -> str:
    """The text of the file; ``across_servers`` is with the rules that are off in it."""
    optional = _OPTIONAL if across_servers else indent(_OPTIONAL, "#:")
    return f"# {GENERATED}\n{_SAMPLE}{optional}"
