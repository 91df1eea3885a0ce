"""Shared state: all writes or none, versions that only increase, the engine's clock, and exact rate limits."""

import pytest

from holdfast.clock import ManualClock
from holdfast.queues.contract import Engine
from holdfast.testing.lab import Lab
from holdfast.testing.laws.racing import at_once
from holdfast.values import Cell, Drop, Put, Spend, Write

KIND = "thing"
RACERS = 16


def put(key: str, value: bytes = b"", *, ttl: float | None = None, if_version: int | None = None) -> Put:
    """A write of one cell."""
    return Put(kind=KIND, key=key, value=value, ttl=ttl, if_version=if_version)


def written(lab: Lab, *writes: Write) -> list[int]:
    """The versions of writes that must succeed."""
    versions = lab.engine.state.write(writes)
    assert versions is not None, "a condition failed"
    return versions


def read_one(lab: Lab, key: str) -> Cell | None:
    """The cell under a key, if there is one."""
    cells = lab.engine.state.read(KIND, [key])
    return cells[0] if cells else None


class StateLaws:
    """The guarantees of cells and buckets."""

    def test_every_handle_reads_what_was_written(self, lab: Lab) -> None:
        [version] = written(lab, put("a", b"one\x00\xff"))
        [cell] = lab.open().state.read(KIND)
        assert (cell.kind, cell.key, cell.value, cell.version) == (KIND, "a", b"one\x00\xff", version)
        assert cell.expires_in is None
        assert lab.engine.state.read("other") == []

    def test_empty_calls_to_shared_state_return_nothing(self, lab: Lab) -> None:
        assert lab.engine.state.write([]) == []
        assert lab.engine.state.spend([]) == []
        assert lab.engine.state.read(KIND, []) == []

    def test_cells_are_read_in_the_order_of_their_keys_a_page_at_a_time(self, lab: Lab) -> None:
        keys = ["B", "a", "a/1", "b", "ä", "€", "\U0001f600"]
        written(lab, *(put(key) for key in reversed(keys)))
        state = lab.engine.state
        assert [cell.key for cell in state.read(KIND)] == sorted(keys, key=str.encode)
        assert [cell.key for cell in state.read(KIND, limit=3)] == ["B", "a", "a/1"]
        assert [cell.key for cell in state.read(KIND, after="a/1", limit=2)] == ["b", "ä"]
        assert [cell.key for cell in state.read(KIND, ["€", "missing", "B"])] == ["B", "€"]
        assert [cell.key for cell in state.read_all(KIND)] == sorted(keys, key=str.encode)

    def test_a_failed_condition_refuses_all_writes(self, lab: Lab) -> None:
        [version] = written(lab, put("a", b"old"))
        before = lab.engine.state.read(KIND)
        for wrong in (0, version - 1, version + 1):
            writes = [put("b", b"new"), put("a", b"new", if_version=wrong), put("c", b"new")]
            assert lab.engine.state.write(writes) is None
            assert lab.engine.state.write(list(reversed(writes))) is None
        assert lab.engine.state.write([Drop(kind=KIND, key="a"), put("x", if_version=7)]) is None
        assert lab.engine.state.read(KIND) == before

    def test_a_condition_that_holds_lets_all_writes_through(self, lab: Lab) -> None:
        [version] = written(lab, put("a", b"old"))
        written(lab, put("a", b"new", if_version=version), put("b", b"new", if_version=0))
        assert [cell.value for cell in lab.engine.state.read(KIND)] == [b"new", b"new"]

    def test_writes_to_one_key_are_applied_in_order(self, lab: Lab) -> None:
        first, second, third = written(lab, put("a", b"1"), Drop(kind=KIND, key="a"), put("a", b"3", if_version=0))
        assert first < second < third
        cell = read_one(lab, "a")
        assert cell is not None
        assert (cell.value, cell.version) == (b"3", third)

    def test_a_dropped_cell_is_absent(self, lab: Lab) -> None:
        [version] = written(lab, put("a"))
        assert lab.engine.state.write([Drop(kind=KIND, key="a", if_version=version + 1)]) is None
        assert read_one(lab, "a") is not None
        written(lab, Drop(kind=KIND, key="a", if_version=version))
        assert read_one(lab, "a") is None
        assert written(lab, Drop(kind=KIND, key="never")) == [0]
        assert lab.engine.state.write([put("a", if_version=version)]) is None
        written(lab, put("a", if_version=0))

    def test_an_expired_cell_is_absent_before_it_is_swept(self, lab: Lab) -> None:
        written(lab, put("a", ttl=10), put("b", ttl=1000))
        cell = read_one(lab, "a")
        assert cell is not None
        assert cell.expires_in is not None
        assert abs(cell.expires_in - 10) <= lab.grain_s
        lab.advance(10 - lab.grain_s)
        assert read_one(lab, "a") is not None
        assert lab.engine.state.write([put("a", if_version=0)]) is None
        lab.advance(2 * lab.grain_s)
        assert read_one(lab, "a") is None
        assert [cell.key for cell in lab.engine.state.read(KIND)] == ["b"]
        written(lab, put("a", b"again", if_version=0))

    def test_expiry_is_judged_by_the_engines_clock(self, lab: Lab) -> None:
        if not lab.keeps_time:
            pytest.skip("the clock of a handle is the engine's")
        ahead = lab.open(clock=ManualClock(lab.now()))
        written(lab, put("a", ttl=10))
        assert isinstance(ahead.clock, ManualClock)
        ahead.clock.advance(1000)
        assert [cell.key for cell in ahead.state.read(KIND)] == ["a"]
        assert ahead.state.write([put("a", if_version=0)]) is None
        assert ahead.state.sweep() == 0
        ahead.state.write([put("b", ttl=10)])
        lab.advance(20)
        assert read_one(lab, "b") is None

    def test_versions_grow_across_drop_expiry_and_sweep(self, lab: Lab) -> None:
        seen = written(lab, put("a"), put("a"), put("a"))
        seen += written(lab, Drop(kind=KIND, key="a"))
        lab.engine.state.sweep()
        seen += written(lab, put("a", ttl=1), put("a", ttl=1))
        lab.advance(2)
        seen += written(lab, put("a", ttl=1))
        lab.advance(2)
        assert lab.engine.state.sweep() == 1
        seen += written(lab, put("a"))
        written(lab, Drop(kind=KIND, key="a"))
        lab.advance(1)
        assert lab.engine.state.sweep() == 1
        seen += written(lab, put("a"))
        assert seen == sorted(set(seen))

    def test_sweeping_deletes_only_what_has_expired(self, lab: Lab) -> None:
        written(lab, put("live"), put("later", ttl=100), *(put(f"old{number}", ttl=1) for number in range(5)))
        lab.engine.state.spend([Spend(bucket="idle", tokens=1, per_s=1, burst=1)])
        lab.advance(2)
        lab.engine.state.spend([Spend(bucket="busy", tokens=5, per_s=0.1, burst=5)])
        assert lab.engine.state.sweep(limit=3) >= 3
        lab.engine.state.sweep()
        assert lab.engine.state.sweep() == 0
        assert [cell.key for cell in lab.engine.state.read(KIND)] == ["later", "live"]
        [spent] = lab.engine.state.spend([Spend(bucket="busy", tokens=1, per_s=0.1, burst=5)])
        assert spent.tokens == 0, "a bucket that is not full was swept"

    def test_of_many_writers_of_one_version_one_wins(self, lab: Lab) -> None:
        [version] = written(lab, put("a"))
        for wanted in (version, 0):
            key = "a" if wanted else "new"

            def write(engine: Engine, number: int, key: str = key, wanted: int = wanted) -> list[int] | None:
                return engine.state.write([put(key, str(number).encode(), if_version=wanted), put(f"{key}/{number}")])

            answers = at_once(lab, RACERS, write)
            assert sum(answer is not None for answer in answers) == 1
            assert len(lab.engine.state.read(KIND, [f"{key}/{number}" for number in range(RACERS)])) == 1

    def test_writers_of_the_same_cells_in_any_order_do_not_deadlock(self, lab: Lab) -> None:
        keys = ["a", "b", "c", "d"]

        def write(engine: Engine, number: int) -> None:
            for turn in range(5):
                chosen = keys if (number + turn) % 2 else list(reversed(keys))
                assert engine.state.write([put(key, b"x") for key in chosen]) is not None

        at_once(lab, 8, write)
        assert [cell.key for cell in lab.engine.state.read(KIND)] == keys

    def test_a_bucket_grants_its_burst_and_then_its_rate(self, lab: Lab) -> None:
        def ask(tokens: int) -> tuple[int, float]:
            [spent] = lab.engine.state.spend([Spend(bucket="b", tokens=tokens, per_s=2, burst=4)])
            return spent.tokens, spent.wait_s

        assert ask(3)[0] == 3
        granted, wait = ask(3)
        assert granted == 1
        assert 0.5 - lab.grain_s <= wait <= 0.5
        assert ask(1)[0] == 0
        lab.advance(0.5 + lab.grain_s)
        assert ask(3)[0] == 1
        lab.advance(100)
        assert ask(100)[0] == 4, "an idle bucket holds its burst and no more"

    def test_a_reservation_is_granted_with_its_wait(self, lab: Lab) -> None:
        waits = [
            lab.engine.state.spend([Spend(bucket="b", tokens=1, per_s=4, burst=1, reserve=True)])[0] for _ in range(3)
        ]
        assert [spent.tokens for spent in waits] == [1, 1, 1]
        for spent, expected in zip(waits, (0.0, 0.25, 0.5), strict=True):
            assert expected - 3 * lab.grain_s <= spent.wait_s <= expected + 1e-5

    def test_a_refund_never_fills_a_bucket_above_its_burst(self, lab: Lab) -> None:
        def ask(tokens: int) -> int:
            return lab.engine.state.spend([Spend(bucket="b", tokens=tokens, per_s=0.001, burst=3)])[0].tokens

        assert ask(2) == 2
        ask(-2)
        assert ask(3) == 3
        ask(-50)
        assert ask(50) == 3

    def test_a_spend_of_nothing_answers_how_full_the_bucket_is(self, lab: Lab) -> None:
        """With a burst of 1, the next token is free when the bucket is full."""

        def ask(tokens: int, burst: int) -> tuple[int, float]:
            [spent] = lab.engine.state.spend([Spend(bucket="b", tokens=tokens, per_s=2, burst=burst)])
            return spent.tokens, spent.wait_s

        assert ask(0, 1) == (0, 0.0)
        assert ask(4, 4)[0] == 4
        for _ in range(2):
            granted, wait = ask(0, 1)
            assert granted == 0
            assert 2.0 - 3 * lab.grain_s <= wait <= 2.0
        assert ask(-4, 1)[1] <= lab.grain_s
        assert ask(4, 4)[0] == 4

    def test_spends_from_one_bucket_are_applied_in_order(self, lab: Lab) -> None:
        asked = [Spend(bucket=name, tokens=2, per_s=0.001, burst=3) for name in ("b", "a", "b", "b")]
        assert [spent.tokens for spent in lab.engine.state.spend(asked)] == [2, 2, 1, 0]

    def test_tokens_cost_the_same_one_at_a_time_and_refunded(self, lab: Lab) -> None:
        """Rounding each token to microseconds must not cost the last one."""

        def ask(*numbers: int) -> list[int]:
            spends = [Spend(bucket="b", tokens=number, per_s=0.003, burst=3) for number in numbers]
            return [spent.tokens for spent in lab.engine.state.spend(spends)]

        assert ask(1, 1, 1, 1) == [1, 1, 1, 0]
        assert ask(-1, -1, -1, 3) == [-1, -1, -1, 3]

    def test_concurrent_spenders_share_the_burst(self, lab: Lab) -> None:
        def spend(engine: Engine, _: int) -> int:
            asked = Spend(bucket="b", tokens=1, per_s=0.001, burst=5)
            return sum(engine.state.spend([asked])[0].tokens for _ in range(3))

        assert sum(at_once(lab, RACERS, spend)) == 5
