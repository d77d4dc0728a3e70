"""The comparison of two commits: equal with one secret, and every job differs with another."""

import pytest

from streamveil.runtime.run import Pace
from tests.audit.run_jobs import outcome
from tests.audit.same_releases import differences, draw


@pytest.mark.slow(landing=True)
@pytest.mark.filterwarnings("ignore:insecure noise")
def test_other_noise_is_seen_in_every_job(tmp_path):
    jobs = draw(2, 3, tmp_path / "jobs")

    def outcomes(seed):
        paces = ({"pace": Pace(max_rows=job["batch"])} for job in jobs)
        pairs = zip(jobs, paces, strict=True)
        return [outcome(job, tmp_path / "jobs", pace, seed) for job, pace in pairs]

    first = outcomes(1)
    assert all(one["error"] is None for one in first)
    shown = [one for one in first if any(release[3] for release in one["releases"])]
    assert len(shown) >= 2  # those that release a row at all
    for one, again, other in zip(first, outcomes(1), outcomes(2), strict=True):
        assert list(differences(one, again)) == []
        assert (one in shown) <= bool(list(differences(one, other)))
