"""Jobs of a dead worker: the leases of its session expire at once, and no other lease does (laws 2, 6 and 11)."""

from holdfast.queues.contract import LeasePolicy, new_owner_token, new_session
from holdfast.testing.lab import Lab
from holdfast.values import DEFAULT_QUEUE, DeadReason, JobLease, JobState, LeaseState, Outcome

MANY_JOBS = 1200


class TakeoverLaws:
    """What `expire_leases` promises."""

    def test_the_jobs_of_a_dead_session_can_be_claimed_at_once(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("c", queue="mail")
        session = new_session()
        leases = [*_claim(lab, session, 1), *_claim(lab, session, 1), *_claim(lab, session, 1, queue="mail")]
        lab.advance(1)
        assert lab.engine.expire_leases([session]) == 3
        assert lab.engine.reap_expired() == 3
        assert [lab.view(lease.id).state for lease in leases] == [JobState.PENDING] * 3
        assert [lab.view(lease.id).crashes for lease in leases] == [1, 1, 1]
        assert [lab.outcomes(lease.id) for lease in leases] == [[Outcome.CRASHED]] * 3
        lab.take("a")

    def test_what_a_dead_session_sent_too_late_is_refused(self, lab: Lab) -> None:
        lab.put("a")
        session = new_session()
        [lease] = _claim(lab, session, 1)
        lab.engine.expire_leases([session])
        with lab.unchanged():
            assert not lab.engine.ack(lease)
            assert lab.engine.renew_many([lease]) == [LeaseState.LOST]
            assert not lab.engine.nack(lease)

    def test_a_renewed_lease_of_a_dead_session_expires(self, lab: Lab) -> None:
        lab.put("a", "b")
        session = new_session()
        first, _ = _claim(lab, session, 2)
        lab.advance(1)
        assert lab.engine.renew_many([first]) == [LeaseState.HELD]
        assert lab.engine.expire_leases([session]) == 2
        assert lab.engine.reap_expired() == 2

    def test_leases_of_other_sessions_stay(self, lab: Lab) -> None:
        before, session, after = (number.to_bytes(8) for number in range(2**40 - 1, 2**40 + 2))
        lab.put("dead", "before", "after", "other")
        _claim(lab, session, 1)
        living = [lease for other in (before, after, new_session()) for lease in _claim(lab, other, 1)]
        assert [lease.id for lease in living] == ["before", "after", "other"]
        assert lab.engine.expire_leases([session]) == 1
        assert lab.engine.reap_expired() == 1
        assert lab.engine.renew_many(living) == [LeaseState.HELD] * 3

    def test_a_session_without_leases_changes_nothing(self, lab: Lab) -> None:
        lab.put("a")
        session = new_session()
        [lease] = _claim(lab, session, 1)
        assert lab.engine.ack(lease)
        with lab.unchanged():
            assert lab.engine.expire_leases([session, new_session()]) == 0
            assert lab.engine.expire_leases([]) == 0

    def test_a_lease_expires_only_once(self, lab: Lab) -> None:
        lab.put("a")
        session = new_session()
        _claim(lab, session, 1)
        assert lab.engine.expire_leases([session]) == 1
        assert lab.engine.expire_leases([session]) == 0
        assert lab.engine.reap_expired() == 1
        assert lab.engine.expire_leases([session]) == 0
        assert lab.view("a").crashes == 1

    def test_a_claim_that_was_committed_late_expires_when_asked_again(self, lab: Lab) -> None:
        lab.put("a", "b")
        session = new_session()
        _claim(lab, session, 1)
        assert lab.engine.expire_leases([session]) == 1
        _claim(lab, session, 1)
        assert lab.engine.expire_leases([session]) == 1
        assert lab.engine.reap_expired() == 2

    def test_several_sessions_expire_together(self, lab: Lab) -> None:
        sessions = [new_session(), new_session()]
        lab.put("a", "b", "c")
        for session in (*sessions, new_session()):
            _claim(lab, session, 1)
        assert lab.engine.expire_leases(sessions) == 2
        assert lab.engine.reap_expired() == 2

    def test_a_dead_session_ends_a_crash_loop(self, lab: Lab) -> None:
        engine = lab.open(LeasePolicy(crash_limit=1))
        lab.put("a")
        session = new_session()
        _claim(lab, session, 1)
        engine.expire_leases([session])
        assert engine.reap_expired() == 1
        assert (lab.view("a").state, lab.view("a").dead_reason) == (JobState.DEAD, DeadReason.CRASH_LOOP)

    def test_all_of_many_leases_expire(self, lab: Lab) -> None:
        lab.put(*(f"j{number:04}" for number in range(MANY_JOBS)))
        session = new_session()
        held = 0
        while held < MANY_JOBS:
            held += len(_claim(lab, session, 500))
        assert lab.engine.expire_leases([session]) == MANY_JOBS
        assert lab.engine.reap_expired() == MANY_JOBS


def _claim(lab: Lab, session: bytes, limit: int, *, queue: str = DEFAULT_QUEUE) -> list[JobLease]:
    leases = lab.engine.claim(queue, limit, owner_token=new_owner_token(session))
    assert leases
    return leases
