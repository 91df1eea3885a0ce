"""How many jobs a worker holds at once, by how long they take."""

from holdfast.worker.pace import BATCH_S, LARGEST_BATCH, Pace


def test_a_worker_begins_with_one_job_for_each_slot() -> None:
    assert Pace().batch("a", 1) == 1
    assert Pace().batch("a", 4) == 4


def test_the_batch_grows_while_jobs_are_short_and_has_an_end() -> None:
    pace = Pace()
    batches: list[int] = []
    for _ in range(100):
        pace.saw("a", BATCH_S / 100)
        batches.append(pace.batch("a", 1))
    assert batches == sorted(batches)
    assert batches[0] == 1, "one short job proves little"
    assert 90 <= batches[-1] <= 100
    for _ in range(1000):
        pace.saw("a", 0.0)
    assert pace.batch("a", 1) == LARGEST_BATCH


def test_a_queue_of_quick_jobs_leaves_room_beside_it() -> None:
    pace = Pace(is_shared=True)
    for _ in range(100):
        pace.saw("quick", 0.0001)
    assert pace.room({}, "quick", 1) > 300
    assert pace.room({"quick": 300}, "unknown", 1) == 1
    assert pace.room({"quick": 300}, "quick", 1) > 50
    pace.saw("slow", 10.0)
    assert pace.room({"quick": 300}, "slow", 1) == 1
    assert (pace.room({"slow": 1}, "quick", 1), pace.room({"slow": 1}, "quick", 2)) == (0, 1)
    assert pace.room({"quick": LARGEST_BATCH}, "unknown", 1) == 0


def test_one_slow_job_is_believed_at_once_and_for_its_queue_only() -> None:
    pace = Pace()
    for queue in ("a", "b"):
        for _ in range(100):
            pace.saw(queue, 0.0001)
    pace.saw("a", 10.0)
    assert pace.batch("a", 2) == 2
    assert pace.batch("b", 2) > 100
