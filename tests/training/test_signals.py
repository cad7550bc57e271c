"""Signals: what is said of them, and which stop at once."""

import signal

import pytest

from opencrate.training.signals import StopRequest

STOPPING = "stopping after this step, with a checkpoint"


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, f"{STOPPING}; once more to stop at once"), (signal.SIGTERM, STOPPING)]
)
@pytest.mark.parametrize("announce", [True, False])
def test_the_first_signal_is_announced_by_one_process(caplog, number, said, announce):
    request, before = StopRequest(), signal.getsignal(number)
    with request.listening(announce):
        assert request.number is None
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)  # a second one, which changes nothing
    assert caplog.messages == [said] * announce
    assert request.number == number
    assert request.stopped(7).code == 128 + number
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_stops_at_once():
    request = StopRequest()
    with request.listening(announce=False):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_process_that_follows_another_ends_as_by_sigterm():
    assert StopRequest().stopped(7).code == 128 + signal.SIGTERM
