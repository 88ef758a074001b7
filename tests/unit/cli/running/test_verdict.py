"""Which rank is named when some end badly: one that failed by itself, the first in time; survivors are witnesses."""

from __future__ import annotations

import signal

from lowerkit.cli.diagnostics import DiagnosedError
from lowerkit.cli.running.report import Report
from lowerkit.cli.running.verdict import RankEnd, verdict
from lowerkit.errors import LowerkitError, RuntimeFault


def failed(rank: int, code: str, message: str, moment: float, exit_code: int = 8) -> RankEnd:
    report = Report(f"error[{code}]: {message}\n  hint: try", code, "model.py:7", exit_code, moment)
    return RankEnd(rank, exit_code, report, moment)


def killed(rank: int, moment: float, number: int = signal.SIGKILL) -> RankEnd:
    return RankEnd(rank, -number, None, moment)


def well(rank: int) -> RankEnd:
    return RankEnd(rank, 0, None, 0.0)


def test_nothing_is_wrong() -> None:
    assert verdict([well(0), well(1)]) is None


def test_a_failure_of_its_own_comes_before_what_follows_from_it() -> None:
    ends = [failed(0, "LK8009", "group 'mesh': rank 1 was lost", 1.0), failed(1, "LK8015", "an index", 2.0)]
    found = verdict(ends)
    assert isinstance(found, DiagnosedError) and found.exit_code == 8
    assert found.text == "error[LK8015]: rank 1: an index\n  hint: try"


def test_of_several_failures_the_first_is_named() -> None:
    found = verdict([failed(0, "LK7002", "out of memory", 2.0, 7), failed(2, "LK1001", "no file", 1.0, 3), well(1)])
    assert isinstance(found, DiagnosedError) and found.exit_code == 3
    assert found.text.startswith("error[LK1001]: rank 2: no file")


def test_what_several_ranks_refuse_is_told_from_the_lowest_on() -> None:
    ends = [failed(rank, "LK1003", f"folder {rank} holds others", 3.0 - rank, 3) for rank in (0, 2)]
    found = verdict([*ends, failed(1, "LK8009", "rank 0 was lost", 0.5)])
    assert isinstance(found, DiagnosedError) and found.exit_code == 3
    lines = found.text.splitlines()
    assert lines == ["error[LK1003]: rank 0: folder 0 holds others", "  - rank 2: folder 2 holds others", "  hint: try"]


def test_what_follows_from_a_failure_is_told_of_the_first_alone() -> None:
    found = verdict([failed(0, "LK8008", "rank 2 did not arrive", 2.0), failed(1, "LK8008", "rank 2 is late", 1.0)])
    assert isinstance(found, DiagnosedError)
    assert found.text == "error[LK8008]: rank 1: rank 2 is late\n  hint: try"


def test_what_all_ranks_say_is_said_once_and_blames_none() -> None:
    found = verdict([failed(rank, "LK1001", "no file", rank, 3) for rank in range(3)])
    assert isinstance(found, DiagnosedError)
    assert found.text == "error[LK1001]: no file\n  hint: try" and found.exit_code == 3


def test_a_failure_of_one_rank_alone_names_it() -> None:
    found = verdict([failed(0, "LK1001", "no file", 1.0, 3)])
    assert isinstance(found, DiagnosedError) and "rank 0: no file" in found.text


def test_a_killed_rank_is_named_with_its_signal_and_its_witnesses() -> None:
    ends = [failed(0, "LK8009", "group 'mesh': rank 1 was lost in all_reduce", 1.0), killed(1, 1.5)]
    found = verdict(ends)
    assert isinstance(found, RuntimeFault) and found.code == "LK8009" and found.exit_code == 8
    assert found.message == "rank 1 was killed by SIGKILL"
    assert found.details == ("rank 0: group 'mesh': rank 1 was lost in all_reduce (at model.py:7)",)
    assert "memory" in str(found.hint)


def test_a_rank_that_ends_without_a_word_is_named_with_its_exit_code() -> None:
    found = verdict([well(0), RankEnd(1, 3, None, 1.0)])
    assert isinstance(found, LowerkitError) and found.message == "rank 1 ended with exit code 3"


def test_diagnostics_of_groups_name_their_rank_themselves() -> None:
    found = verdict([failed(0, "LK8008", "group 'mesh': rank 0: rank 1 did not arrive", 1.0)])
    assert isinstance(found, DiagnosedError)
    assert found.text.startswith("error[LK8008]: group 'mesh': rank 0: rank 1 did not arrive")


def test_a_rank_is_called_by_its_place_where_it_has_one() -> None:
    names = ["rank 0 (dp=0,tp=0)", "rank 1 (dp=0,tp=1)"]
    lost = verdict([well(0), killed(1, 1.0)], names)
    assert isinstance(lost, LowerkitError) and lost.message == "rank 1 (dp=0,tp=1) was killed by SIGKILL"
    own = verdict([well(0), failed(1, "LK8015", "an index", 1.0)], names)
    assert isinstance(own, DiagnosedError) and own.text.startswith("error[LK8015]: rank 1 (dp=0,tp=1): an index")
