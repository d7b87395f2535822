"""The campaign of connections tells what it should, on a small scale."""

from tests.robustness.connections import run


def test_half_open_connections_keep_nobody_out_and_streams_arrive_whole() -> None:
    figures = run(half=300, many=8)

    assert 0 < figures["daemon, half-open"]["held"] < 300, "the daemon has a limit"
    assert figures["proxy, half-open"]["held"] >= 300
    assert figures["proxy, half-open"]["log_lines"] == 0
    assert figures["proxy, streams"]["whole"] == figures["proxy, streams"]["streams"] == 8
