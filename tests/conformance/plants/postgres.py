"""Bugs for the PostgreSQL engine: statements that lack a condition, a lock or a column."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, LeasePolicy, LockedSlots, Place, SlotRow, Waiter
from holdfast.queues.engines.postgres import edges, records as inspector, slots, state
from holdfast.queues.engines.postgres.connections import Connection
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.postgres.jobs import (
    ACK,
    CLAIM,
    CLAMP,
    END,
    EXPIRE,
    GATE,
    GIVE_BACK,
    INSERT,
    INSERT_WITH_CHILDREN,
    KNOWN,
    LEASE_COLUMNS,
    LEASE_STATES,
    NEXT_DUE,
    REAP,
    RENEW,
    REPORT_OUTPUT,
    REPORT_PROGRESS,
    RESCHEDULE,
    SETTLED_AS,
    PostgresJobs,
)
from holdfast.queues.engines.postgres.state import PostgresState
from holdfast.queues.engines.postgres.statements import CLOCK, NOW, NOW_IS
from holdfast.queues.engines.tables.rows import LONG_US, MANY, NEVER
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab
from holdfast.values import Settlement, Spend, Spent, Write

from ..labs import postgres_lab
from .planting import PROCESS_TIME, Bug, Edit, Plant, Planting, bug

HOLDER = "owner_token = :token AND "
IN_TIME = f" AND lease_until > {NOW}"
OF_CLAIM = "AND (seq, owner_token) IN (SELECT * FROM unnest(:seqs::bigint[], :tokens::bytea[]))"
DUE = f"due_at <= {NOW}"
OF_QUEUE = " AND (:queue::text IS NULL OR queue = :queue)"
NOT_PAUSED = "NOT EXISTS (SELECT 1 FROM holdfast.pauses WHERE queue = :queue)"
UNLESS_CANCELLED = "CASE WHEN cancel_request IS NOT NULL THEN 6 WHEN"
# A delay in the middle of a claim, so that a rare race always happens.
SLOW: Edit = (
    CLAIM,
    "SELECT at, crashes, row_number() OVER () AS place FROM chosen",
    "SELECT at, crashes, row_number() OVER () AS place FROM chosen"
    " WHERE (SELECT count(*) FROM generate_series(1, 50000 + 0 * crashes)) > 0",
)
# The same in the middle of a decision about shared state.
SLOW_CELLS: Edit = (
    state.STORED,
    "c.key = given.key",
    "c.key = given.key AND (SELECT count(*) FROM generate_series(1, 50000 + 0 * c.version)) > 0",
)
SLOW_BUCKETS: Edit = (
    state.FULL_AT,
    "WHERE name",
    "WHERE (SELECT count(*) FROM generate_series(1, 50000 + 0 * full_at)) > 0 AND name",
)

# The same in the middle of a decision about slots or unique keys.
SLOW_PLACES: Edit = (
    slots.PLACES,
    "WHERE p.slot = ANY (:names::text[])",
    "RIGHT JOIN (SELECT count(*) AS number FROM generate_series(1, 300000)) AS slow ON p.slot = ANY (:names::text[])"
    " WHERE p.slot IS NOT NULL AND slow.number > 0",
)
SLOW_KEYS: Edit = (
    slots.STATES_OF,
    "WHERE j.id",
    "WHERE (SELECT count(*) FROM generate_series(1, 300000 + 0 * j.seq)) > 0 AND j.id",
)

# The same in the middle of a decision about edges between jobs, and before a note is left.
SLOW_EDGES: Edit = (
    edges.CHILD_OUTCOMES,
    "WHERE child",
    "WHERE (SELECT count(*) FROM generate_series(1, 300000)) > 0 AND child",
)
SLOW_ACK: Edit = (ACK, "WHERE seq =", "WHERE (SELECT count(*) FROM generate_series(1, 3000000)) > 0 AND seq =")
# The acknowledgement has begun by then, and does not see these edges.
LATE_EDGES: Edit = (
    edges.CONNECT,
    "AS g (parent, child, policy)",
    "AS g (parent, child, policy) WHERE (SELECT count(*) FROM generate_series(1, 300000)) > 0",
)
SLOW_NOTE: Edit = (
    edges.NOTE_ENDED,
    "WHERE coalesce",
    "RIGHT JOIN (SELECT count(*) AS number FROM generate_series(1, 300000)) AS slow ON true"
    " WHERE edge.parent IS NOT NULL AND slow.number > 0 AND coalesce",
)

BUGS: dict[str, Bug] = {
    "takeover robs every worker": bug(
        "test_leases_of_other_sessions_stay", (EXPIRE, " AND owner_token BETWEEN :first AND :last", "")
    ),
    "takeover robs the next session": bug(
        "test_leases_of_other_sessions_stay", (EXPIRE, "BETWEEN :first AND :last", ">= :first")
    ),
    "takeover counts leases that have expired": bug("test_a_lease_expires_only_once", (EXPIRE, IN_TIME, "")),
    "ack without token check": bug("test_a_stale_lease_cannot_settle_a_job_that_another_holds", (ACK, HOLDER, "")),
    "nack without token check": bug("test_a_forged_token_cannot_settle", (GIVE_BACK, HOLDER, "")),
    "abandon without token check": bug("test_a_lease_of_one_job_cannot_settle_another", (END, HOLDER, "")),
    "ack accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (ACK, IN_TIME, "")
    ),
    "nack accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (GIVE_BACK, IN_TIME, "")
    ),
    "abandon accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (END, IN_TIME, "")
    ),
    "lease one microsecond too long": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
        (ACK, f"lease_until > {NOW}", f"lease_until >= {NOW}"),
    ),
    "lease compared the wrong way round": bug(
        "test_a_lease_can_settle_until_its_last_moment", (END, f"lease_until > {NOW}", f"lease_until < {NOW}")
    ),
    "renewal revives an ended lease": bug(
        "test_an_expired_lease_is_never_revived", (RENEW, f" AND lease_until > {CLOCK}", "")
    ),
    "renewal without token check": bug("test_a_forged_lease_is_lost", (RENEW, OF_CLAIM, "")),
    "renewal moves nothing": bug(
        "test_a_renewed_lease_expires_a_full_length_from_now",
        (RENEW, f"lease_until = {CLOCK} + least(lease_us, {LONG_US})", "lease_until = lease_until"),
    ),
    "renewal by a length of its own": bug(
        "test_a_renewal_does_not_change_the_length_of_a_lease",
        (RENEW, f"least(lease_us, {LONG_US})", "60000000"),
    ),
    "reaper takes living leases": bug(
        "test_the_reaper_does_not_touch_unexpired_leases", (REAP, f"lease_until <= {NOW}", "lease_until IS NOT NULL")
    ),
    "reaper reaps every queue": bug("test_the_reaper_reaps_one_queue_or_all", (REAP, OF_QUEUE, "")),
    "reaper leaves no history": bug(
        "test_a_delivery_without_a_verdict_is_in_the_history",
        (REAP, "FROM held ON CONFLICT (seq, delivery)", "FROM held WHERE false ON CONFLICT (seq, delivery)"),
    ),
    "reaper records the wrong start of the run": bug(
        "test_a_delivery_without_a_verdict_lasted_from_its_claim_until_it_was_reaped",
        (REAP, ":outcome, coalesce(claimed_at, ", ":outcome, coalesce(NULL::bigint, "),
    ),
    "crash not counted": bug(
        "test_a_reaped_job_is_pending_with_one_crash_and_no_attempt",
        (REAP, f"crashes = CASE WHEN :crash THEN least(o.crashes, {MANY}) + 1 WHEN", "crashes = CASE WHEN"),
    ),
    "crash counted by each of two reapers": bug(
        "test_concurrent_reapers_count_a_crash_once",
        (REAP, " FOR UPDATE SKIP LOCKED", ""),
        (
            REAP,
            "AND lease_until",
            "AND (SELECT count(*) FROM generate_series(1, 50000 + 0 * crashes)) > 0 AND lease_until",
        ),
    ),
    "crash limit off by one": bug(
        "test_a_job_is_dead_at_the_crash_limit_and_never_delivered_again",
        (REAP, ">= :crash_limit", "> :crash_limit"),
    ),
    "marked crash ignores the limit": bug(
        "test_releases_marked_crashed_count_like_any_crash", (GIVE_BACK, ">= :crash_limit", "> 1000 + :crash_limit")
    ),
    "crashes not reset by a verdict": bug(
        "test_a_verdict_resets_the_crashes",
        (GIVE_BACK, "THEN o.crashes ELSE 0 END", "THEN o.crashes ELSE o.crashes END"),
    ),
    "crashes reset by handing back": bug(
        "test_releasing_an_unstarted_job_does_not_change_its_crashes",
        (GIVE_BACK, "WHEN :keeps_crashes THEN o.crashes ELSE 0 END", "ELSE 0 END"),
    ),
    "crashes reset by a rejection": bug(
        "test_a_job_that_was_never_started_retains_its_crashes",
        (END, "CASE WHEN :keeps_crashes THEN crashes ELSE 0 END", "0"),
    ),
    "suspect claimed with others": bug(
        "test_a_suspect_at_the_head_of_the_queue_comes_alone", (CLAIM, "WHERE crashes > 0)", "WHERE crashes > 99)")
    ),
    "due time ignored": bug("test_a_job_is_never_delivered_early", (CLAIM, f" AND {DUE}", "")),
    "delivered late": bug(
        "test_a_job_is_never_delivered_early",
        (CLAIM, DUE, f"due_at < {NOW}"),
    ),
    "due time not in the order": bug(
        "test_a_small_claim_returns_the_first_in_order", (CLAIM, "ORDER BY due_at, id LIMIT", "ORDER BY id LIMIT")
    ),
    "order of a batch lost": bug(
        "test_a_batch_is_claimed_in_the_order_it_was_accepted", (INSERT, f"{NOW} - :number + place", NOW)
    ),
    "priorities the wrong way round": bug(
        "test_a_small_claim_returns_the_first_in_order", (CLAIM, "generate_series(9, 0, -1)", "generate_series(0, 9)")
    ),
    "limit not applied": bug("test_a_claim_returns_at_most_its_limit", (CLAIM, "LIMIT :limit", "LIMIT 1000")),
    "limit for each priority": bug(
        "test_a_small_claim_returns_the_first_in_order",
        (CLAIM, "LIMIT :limit\n    ), placed", "LIMIT 1000\n    ), placed"),
    ),
    # An update by place finds no row that another claim has stamped, even without the lock.
    "claim neither locks nor updates by place": bug(
        "test_concurrent_claims_never_share_a_job",
        (CLAIM, " FOR UPDATE SKIP LOCKED", ""),
        (CLAIM, "SELECT ctid AS at", "SELECT seq AS at"),
        (CLAIM, "WHERE ctid = ANY", "WHERE seq = ANY"),
        SLOW,
    ),
    "same claim not told from another": bug(
        "test_the_same_claim_sent_concurrently_stamps_one_batch",
        (GATE, "pg_advisory_xact_lock(:gate)", ":gate::bigint"),
        SLOW,
    ),
    "repeated claim stamps new jobs": bug(
        "test_a_repeated_claim_returns_what_it_stamped",
        (CLAIM, "WHERE state = 2 AND owner_token", "WHERE state = 9 AND owner_token"),
    ),
    "repeated claim returns ended leases": bug(
        "test_a_repeated_claim_does_not_return_an_expired_lease", (CLAIM, IN_TIME, "")
    ),
    "repeated claim of any queue": bug(
        "test_the_same_token_on_another_queue_is_another_claim",
        (CLAIM, "= :token AND queue = :queue", "= :token"),
    ),
    "repeated claim fences late": bug(
        "test_a_repeated_claim_does_not_fence_after_its_lease_expires",
        (LEASE_COLUMNS, f"least(o.lease_until - {NOW}, o.lease_us)", "o.lease_us"),
    ),
    "pause ignored": bug(
        "test_a_paused_queue_returns_nothing_and_others_are_not_affected",
        (CLAIM, f" AND {NOT_PAUSED}", ""),
    ),
    "delivery not counted": bug(
        "test_a_delivery_is_counted_once_per_claim",
        (CLAIM, f"deliveries = least(deliveries, {MANY}) + 1", "deliveries = greatest(deliveries, 1)"),
    ),
    "attempt lost on nack": bug(
        "test_a_nack_costs_an_attempt_and_waits_for_its_retry",
        (GIVE_BACK, f"least(o.attempts, {MANY}) + :attempt", "o.attempts"),
    ),
    "attempt counted on release": bug(
        "test_a_release_costs_no_attempt", (GIVE_BACK, f"least(o.attempts, {MANY}) + :attempt", "o.attempts + 1")
    ),
    "delay forgotten on nack": bug("test_a_retry_is_never_delivered_early", (GIVE_BACK, f"{NOW} + :delay", NOW)),
    "transaction outlives its lease": bug(
        "test_a_transaction_whose_lease_has_expired_is_rolled_back", (END, IN_TIME, "")
    ),
    "dead reason lost": bug("test_an_abandoned_job_is_dead_with_its_reason", (END, ":dead_reason", "NULL")),
    "last error lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (END, "coalesce(:error, last_error)", "NULL")
    ),
    "expiry of a job not kept": bug(
        "test_an_expired_job_is_replayed_only_if_its_expiry_is_ignored", (END, ":expired", "false")
    ),
    "attempt of an ack not kept": bug(
        "test_each_job_of_a_large_batch_gets_its_own_attempt",
        (ACK, "ON told.seq = held.seq", "ON told.seq = -held.seq"),
    ),
    "result dropped": bug("test_an_ack_completes_the_job", (END, ":result", "NULL")),
    "output dropped": bug("test_an_abandoned_job_is_dead_with_its_reason", (END, ":output", "NULL")),
    "cancel request lost on retry": bug(
        "test_a_job_with_a_cancellation_request_is_not_retried", (GIVE_BACK, UNLESS_CANCELLED, "CASE WHEN")
    ),
    "cancel request lost by the reaper": bug(
        "test_a_job_with_a_cancellation_request_is_cancelled_when_it_is_reaped", (REAP, UNLESS_CANCELLED, "CASE WHEN")
    ),
    "cancel request taken back by a renewal": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (RENEW, "SET lease_until = ", "SET cancel_request = NULL, lease_until = "),
    ),
    "running job cancelled under its worker": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (inspector.CANCEL_WAITING, "IN (0, 1, 3)", "IN (0, 1, 2, 3)"),
    ),
    "repeated settlement refused": bug(
        "test_a_repeated_settlement_answers_true_and_changes_nothing", (SETTLED_AS, ":verdict", ":verdict AND false")
    ),
    "other verdict taken for a repetition": bug(
        "test_another_verdict_with_the_same_token_is_refused",
        (SETTLED_AS, "AND verdict = :verdict", "AND verdict IS NOT NULL"),
    ),
    "clock set back reaps": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (CLAMP, f"SET lease_until = {NOW} + greatest(lease_us, 0)", f"SET lease_until = {NOW}"),
    ),
    "clock set back holds for ever": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped", (CLAMP, "state = 2", "state = 9")
    ),
    "clock of the process asked": bug(
        "test_the_clock_of_a_worker_decides_nothing",
        (NOW_IS, "(extract(epoch FROM clock_timestamp()) * 1000000)", PROCESS_TIME),
    ),
    "same id overwrites": bug(
        "test_the_same_id_with_other_content_is_refused",
        (INSERT, "DO NOTHING", "DO UPDATE SET job = excluded.job, wire = excluded.wire"),
        (INSERT, "SELECT * FROM new\n", "SELECT * FROM new ON CONFLICT DO NOTHING\n"),
    ),
    "tombstone not looked at": bug(
        "test_a_discarded_id_is_known_for_an_hour_and_then_free", (KNOWN, f"e.finished_at <= {NOW}", "true")
    ),
    "tombstone free too soon": bug(
        "test_a_purged_id_is_known_for_an_hour_and_then_free", (inspector.FORGET, ":until", ":until - 1800000000")
    ),
    "purge takes dead letters along": bug(
        "test_a_purge_deletes_only_jobs_in_the_given_states",
        (
            inspector.FINISHED_BEFORE,
            "state = :state AND",
            "state IN (:state, 5) AND",
        ),
    ),
    "purge ignores age": bug(
        "test_a_purge_leaves_jobs_that_finished_recently", (inspector.FINISHED_BEFORE, " - :age::bigint", "")
    ),
    "replay keeps attempts": bug(
        "test_a_replayed_dead_letter_starts_a_new_life_with_its_history",
        (inspector.REPLAY, f"{NOW}, 0, 0,", f"{NOW}, over.attempts, 0,"),
    ),
    "replay keeps crashes": bug(
        "test_a_replayed_job_is_not_a_suspect", (inspector.REPLAY, f"{NOW}, 0, 0,", f"{NOW}, 0, over.crashes,")
    ),
    "replay of a completed job": bug(
        "test_only_dead_and_cancelled_jobs_are_replayed", (inspector.REPLAY, "IN (5, 6)", "IN (4, 5, 6)")
    ),
    "replay forgets to ignore the expiry": bug(
        "test_a_dead_letter_can_be_replayed_with_its_expiry_ignored",
        (inspector.REPLAY, "over.ignore_expiry OR :ignore_expiry", "false"),
    ),
    "history backwards": bug(
        "test_the_history_has_every_attempt_in_order",
        (inspector.ATTEMPTS, "ORDER BY 1", "ORDER BY 1 DESC"),
    ),
    "scheduled counted as pending": bug(
        "test_every_job_is_counted_in_one_state", (inspector.COUNT, f"state = 0 AND due_at > {NOW}", "false")
    ),
    "wait of the first priority only": bug(
        "test_the_longest_wait_of_each_queue_is_known",
        (inspector.OLDEST_DUE, "(j.queue, j.priority) > (oldest.queue, oldest.priority)", "false"),
    ),
    "leased jobs wait": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "state <= 1", "state <= 2")
    ),
    "next due job of another queue": bug(
        "test_a_wait_ends_when_a_job_is_due", (NEXT_DUE, "o.queue = asked.queue", "o.queue <> asked.queue")
    ),
    "wait spins while paused": bug(
        "test_a_job_that_cannot_be_claimed_does_not_end_a_wait",
        (NEXT_DUE, "WHERE p.queue = asked.queue", "WHERE false"),
    ),
    "progress without token check": bug("test_a_stale_lease_cannot_report_progress", (REPORT_PROGRESS, HOLDER, "")),
    "progress accepted after the lease ended": bug(
        "test_a_stale_lease_cannot_report_progress", (REPORT_PROGRESS, IN_TIME, "")
    ),
    "second report keeps the delivery of the first": bug(
        "test_a_crash_loop_shows_the_progress_of_its_last_delivery",
        (REPORT_PROGRESS, "delivery = excluded.delivery, ", ""),
    ),
    "output without token check": bug("test_a_stale_lease_cannot_report_output", (REPORT_OUTPUT, HOLDER, "")),
    "output accepted after the lease ended": bug(
        "test_a_stale_lease_cannot_report_output", (REPORT_OUTPUT, IN_TIME, "")
    ),
    "output of the first delivery": bug(
        "test_the_output_of_a_crashed_delivery_is_retained",
        (REPORT_OUTPUT, "SELECT seq, deliveries", "SELECT seq, 1"),
    ),
    "first output stays": bug(
        "test_the_latest_output_replaces_the_previous_one",
        (REPORT_OUTPUT, "DO UPDATE SET start = excluded.start, text = excluded.text", "DO NOTHING"),
    ),
    "a verdict takes the output of crashes along": bug(
        "test_the_output_of_a_crashed_delivery_is_retained", (END, " AND l.delivery = held.deliveries", "")
    ),
    "an error takes the place of the output": bug(
        "test_reported_output_remains_if_the_verdict_has_none",
        (GIVE_BACK, ":output::bytea IS NOT NULL AND ", ""),
    ),
    "a look finds every lease held": bug(
        "test_lease_states_are_read_without_extending_a_lease", (LEASE_STATES, IN_TIME, "")
    ),
    "a look finds nothing cancelled": bug(
        "test_lease_states_are_read_without_extending_a_lease",
        (LEASE_STATES, "cancel_request IS NOT NULL", "false"),
    ),
    "cells compared before they are locked": bug(
        "test_of_many_writers_of_one_version_one_wins",
        (state.LOCK_CELLS, "DO UPDATE SET version = c.version WHERE false", "DO NOTHING"),
        SLOW_CELLS,
    ),
    "versions begin at one": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (state.PUT, f"THEN 0 ELSE {CLOCK} END", "THEN 0 ELSE 1 END"),
        (state.PUT, f"greatest(least(c.version, {NEVER - 1}) + 1, {CLOCK})", "c.version + 1"),
    ),
    "sweep forgets a version ahead of the clock": bug(
        "test_versions_grow_across_drop_expiry_and_sweep", (state.SWEEP, f" AND version < {NOW}", "")
    ),
    "expired cells shown until they are swept": bug(
        "test_an_expired_cell_is_absent_before_it_is_swept",
        (state.READ_THESE, f" AND (expires_at IS NULL OR expires_at > {NOW})", ""),
    ),
    "expiry by the clock of the process": bug(
        "test_expiry_is_judged_by_the_engines_clock",
        (NOW_IS, "(extract(epoch FROM clock_timestamp()) * 1000000)", PROCESS_TIME),
    ),
    "cells in another order than that of their keys": bug(
        "test_cells_are_read_in_the_order_of_their_keys_a_page_at_a_time",
        (state.READ, "ORDER BY key", "ORDER BY length(key), key"),
    ),
    "drop says that there was something": bug(
        "test_a_dropped_cell_is_absent", (state.PUT, "CASE WHEN ttl = 0 THEN 0 ELSE", "CASE WHEN false THEN 0 ELSE")
    ),
    "buckets read before they are locked": bug(
        "test_concurrent_spenders_share_the_burst",
        (state.LOCK_BUCKETS, "DO UPDATE SET full_at = b.full_at WHERE false", "DO NOTHING"),
        SLOW_BUCKETS,
    ),
    "sweep takes buckets that are not full": bug(
        "test_sweeping_deletes_only_what_has_expired", (state.SWEEP, f"full_at <= {NOW}", "full_at > 0")
    ),
    "stored size ignored": bug(
        "test_a_slot_of_size_0_admits_no_job_and_promotes_none", (slots.RESIZE, "size = given.size,", "")
    ),
    "closed slot admits": bug(
        "test_a_closed_slot_admits_no_job_before_its_time",
        (slots.RESIZE, "closed_until = given.closed_until", "closed_until = 0"),
    ),
    "closed slot never opens": bug(
        "test_a_slot_that_was_closed_admits_its_size_afterwards",
        (slots.FREE_PLACES, "coalesce(s.closed_until, 0) <=", "coalesce(s.closed_until, 0) + :limit * 0 = 0 AND 0 <"),
    ),
    "size forgotten by an entry": bug(
        "test_the_stored_size_counts_not_that_of_the_message",
        (slots.TAKE, "SET fence = given.fence", "SET fence = given.fence, size = NULL"),
    ),
    "size deleted with an unused slot": bug(
        "test_an_unused_slot_keeps_its_size_and_its_closing_time",
        (inspector.LOCK_IDLE_SLOTS, " AND s.size IS NULL", ""),
        (inspector.DELETE_SLOTS, " AND s.size IS NULL", ""),
    ),
    "everyone leaves with the first": bug(
        "test_as_many_jobs_enter_as_the_slot_has_places",
        (slots.FREE, "(slot, seq) IN", ":seqs::text <> '' AND slot IN"),
        (slots.FREE, "SELECT * FROM unnest(:slots::text[], :seqs::bigint[])", "SELECT unnest(:slots::text[])"),
    ),
    "slots not locked": bug(
        "test_racing_jobs_never_exceed_the_places", (slots.LOCK_SLOTS, " FOR UPDATE", ""), SLOW_PLACES
    ),
    "places outlive their leases": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (slots.PLACES, " AND o.lease_until > :now::bigint", ""),
    ),
    "places of any claim": bug(
        "test_a_dead_holder_is_noticed_by_the_reaper",
        (slots.IS_TAKEN, f"o.owner_token = p.owner_token AND o.lease_until > {NOW}", "true"),
    ),
    "entry without a lease": bug(
        "test_a_job_without_a_lease_cannot_enter", (slots.LOCK_HELD, " AND lease_until > :now", "")
    ),
    "slot left by its name alone": bug(
        "test_as_many_jobs_enter_as_the_slot_has_places",
        (slots.FREE, "WHERE (slot, seq) IN (SELECT * ", "WHERE slot IN (SELECT slots "),
        (slots.FREE, ":seqs::bigint[])", ":seqs::bigint[]) AS given (slots, seqs)"),
    ),
    "promotion without a mark": bug(
        "test_a_newcomer_does_not_overtake_a_promoted_job", (slots.PROMOTE, ":now, :until FROM", ":now, :now FROM")
    ),
    "promotion never ends": bug("test_a_promotion_expires", (slots.PLACES, "coalesce(p.until, 0)", ":now::bigint + 1")),
    "promotion ends though its job can still enter": bug(
        "test_jobs_that_no_worker_claims_for_long_are_claimed_at_most_twice",
        (slots.IS_TAKEN, "ELSE o.queue", f"ELSE p.until > {NOW} AND o.queue"),
        (slots.PLACES, "ELSE o.queue", "ELSE p.until > :now::bigint AND o.queue"),
    ),
    "promotion ends with the claim of its job": bug(
        "test_a_promoted_job_that_enters_late_does_not_lose_its_place",
        (slots.IS_TAKEN, "2 THEN o.queue", f"2 THEN p.until > {NOW} AND o.queue"),
        (slots.PLACES, "2 THEN o.queue", "2 THEN p.until > :now::bigint AND o.queue"),
    ),
    "promotion outlives the lease of its job": bug(
        "test_a_promoted_job_that_dies_before_it_enters_passes_the_slot_on",
        (slots.IS_TAKEN, f"THEN o.queue = p.queue AND o.lease_until > {NOW}", "THEN o.queue = p.queue"),
    ),
    "promotion of a job that is not due": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, f" AND o.due_at <= {CLOCK} END", " END"),
    ),
    "promotion in the queue that a job has left": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, "ELSE o.queue = p.queue AND", "ELSE"),
    ),
    "job returned unstarted loses its turn": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "WHERE", "WHERE false AND")
    ),
    "job returned unstarted has no promotion mark": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "until = :until", "until = 0")
    ),
    "blocked despite a request to cancel": bug(
        "test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked",
        (slots.BLOCK, "cancel_request IS NOT NULL RETURNING", "false RETURNING"),
        (slots.BLOCK, " AND o.cancel_request IS NULL", ""),
    ),
    "cancelled instead of blocked without its reason": bug(
        "test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked",
        (slots.BLOCK, "            cancel_request\n", "            NULL\n"),
    ),
    "larger limit not looked for": bug(
        "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
        (slots.BEST, " AND b.size > given.ahead", ""),
    ),
    "one queue promoted": bug(
        "test_a_paused_queue_does_not_keep_the_others_waiting",
        (
            slots.WAITING_QUEUES,
            "SELECT name, queue FROM pairs WHERE queue IS NOT NULL",
            "SELECT name, max(queue) FROM pairs WHERE queue IS NOT NULL GROUP BY name",
        ),
    ),
    "waiting jobs promoted in any order": bug(
        "test_the_best_waiting_job_is_promoted", (slots.BEST, "best.lane, best.due_at, best.id", "best.due_at, best.id")
    ),
    "promotion of a job that is no longer blocked": bug(
        "test_a_blocked_job_that_was_rescheduled_reserves_nothing",
        (slots.PROMOTE, "AND state = 3", "AND state IN (0, 1, 3)"),
        (slots.PROMOTE, "AND o.state = 3 RETURNING", "RETURNING"),
    ),
    "waiting jobs counted that are no longer blocked": bug(
        "test_a_blocked_job_can_be_rescheduled", (inspector.NUMBER_WAITING, " AND o.state = 3", "")
    ),
    "slot of a job shown that is no longer blocked": bug(
        "test_a_blocked_job_can_be_rescheduled", (inspector.OPEN, "b.seq = s.seq AND s.state = 3", "b.seq = s.seq")
    ),
    "blocking counts as a crash": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost",
        (slots.BLOCK, "owner_token = NULL", "owner_token = NULL, crashes = crashes + 1"),
    ),
    "fences restart": bug(
        "test_fences_grow_from_holder_to_holder", (slots.LOCK_SLOTS, f"least(fence, {NEVER - 1})", "0::bigint")
    ),
    "fences of a clock alone": bug(
        "test_fences_grow_from_holder_to_holder", (slots.TAKE, "SET fence = given.fence", "SET fence = 0")
    ),
    "entry repeated without its fence": bug(
        "test_repeating_an_entry_returns_the_same_fence", (slots.PLACES, "p.owner_token, p.fence,", "p.owner_token, 0,")
    ),
    "marks spare jobs for ever": bug(
        "test_expired_marks_spare_nothing", (slots.LIVE_CELLS, " OR c.expires_at > :now", " OR true")
    ),
    "repair sees no free place": bug(
        "test_repair_finishes_what_a_reaper_left_undone", (slots.FREE_PLACES, "coalesce(s.size, best.size) >", "0 >")
    ),
    "repair counts promotions of jobs that cannot enter": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.FREE_PLACES, f"o.queue = p.queue AND o.state <= 1 AND o.due_at <= {CLOCK}", "true"),
    ),
    "places of jobs that have ended stay": bug(
        "test_unused_slots_are_deleted", (inspector.DELETE_PLACES, "AND NOT (", "AND (")
    ),
    "keys not locked": bug(
        "test_of_racing_callers_one_stores_its_job", (slots.LOCK_KEYS, " FOR UPDATE", ""), SLOW_KEYS
    ),
    "waiting job counts as running": bug(
        "test_while_it_waits_ends_with_the_start_of_the_job",
        (slots.LOCK_UNSTARTED, "state <> 2", "state > 3"),
    ),
    "state of a job ignored": bug("test_until_done_ends_with_the_job", (slots.STATES_OF, "THEN e.state", "THEN 0")),
    "period forgotten": bug(
        "test_a_period_ends_by_the_clock_alone", (slots.STORE_KEYS, "until = given.until\n", "until = 0\n")
    ),
    "keys of open jobs deleted": bug(
        "test_unused_keys_are_deleted",
        (inspector.LOCK_KEYS_OVER, "AND NOT EXISTS (", "AND NOT EXISTS (SELECT 1 WHERE false) OR EXISTS ("),
        (inspector.DELETE_KEYS, "AND NOT EXISTS (", "AND NOT EXISTS (SELECT 1 WHERE false) OR EXISTS ("),
    ),
    "keys of a period deleted": bug(
        "test_a_period_ends_by_the_clock_alone",
        (inspector.LOCK_KEYS_OVER, f"u.until <= {NOW} AND ", ""),
        (inspector.DELETE_KEYS, f"u.until <= {NOW} AND ", ""),
    ),
    "running job rescheduled": bug(
        "test_a_job_that_has_started_is_not_rescheduled",
        (RESCHEDULE, "WHERE o.state <> 2 ", "WHERE true "),
        (RESCHEDULE, "SET state = CASE", "SET owner_token = NULL, state = CASE"),
    ),
    "rescheduled job due at its old time": bug(
        "test_a_rescheduled_job_gets_its_new_message_and_time",
        (
            RESCHEDULE,
            "due_at = chosen.due_at, priority = chosen.priority, queue = chosen.queue\n        FROM chosen WHERE o.",
            "priority = chosen.priority, queue = chosen.queue\n        FROM chosen WHERE o.",
        ),
    ),
    "child not blocked": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (INSERT_WITH_CHILDREN, "THEN 3", "THEN 0")
    ),
    "time of a blocked child not shown": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed",
        (inspector.OPEN, "THEN j.accepted_at", "THEN NULL::bigint"),
    ),
    "end of a parent not noted": bug(
        "test_a_child_waits_for_all_of_its_parents", (edges.NOTE_ENDED, "LIMIT 1", "LIMIT 0")
    ),
    "death of a reaped parent not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (REAP, "FILTER (WHERE next_state >= 4)", "FILTER (WHERE false)")
    ),
    "parent cancelled by an operator not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (inspector.CANCEL_WAITING, "RETURNING seq", "RETURNING -seq")
    ),
    "edges deleted with the parent": bug(
        "test_a_deleted_parent_counts_as_failed", (inspector.DELETE_EDGES, "WHERE child", "WHERE parent")
    ),
    "children decided without their lock": bug(
        "test_parents_that_complete_at_once_release_the_child_once",
        (edges.LOCK_BLOCKED, " FOR UPDATE", ""),
        (edges.LOCK_CHILDREN, " FOR UPDATE", ""),
        (edges.LOCK_NOTES, "LIMIT :limit", "LIMIT 1 + 0 * :limit"),
        SLOW_EDGES,
    ),
    "end noted in the statement that ends": bug(
        "test_a_child_accepted_while_its_parent_ends_runs",
        SLOW_ACK,
        (
            ACK,
            "    SELECT seq FROM held",
            "    , noted AS (INSERT INTO holdfast.notes (parent) SELECT e.parent FROM held"
            " JOIN holdfast.edges AS e ON e.parent = held.seq AND e.outcome <> 1) SELECT seq FROM held",
        ),
        (edges.NOTE_ENDED, "LIMIT 1", "LIMIT 0"),
        LATE_EDGES,
    ),
    "note on a parent that is about to end dismissed": bug(
        "test_a_child_accepted_while_its_parent_ends_runs",
        (edges.DISMISS, " FOR SHARE SKIP LOCKED", ""),
        SLOW_NOTE,
    ),
    "released child still blocked": bug(
        "test_a_settlement_releases_the_children_in_the_same_call", (edges.RELEASE, "WHERE seq", "WHERE false AND seq")
    ),
    "cancelled child without its reason": bug(
        "test_every_end_of_a_parent_is_noticed", (edges.CANCEL, "'parent-failed'", "''")
    ),
    "policy of an edge ignored": bug(
        "test_a_parent_that_has_ended_counts_at_once", (edges.EDGES, " AND e.policy = turn.policy", "")
    ),
    "children of a replayed parent not revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.REOPEN, "WHERE seq", "WHERE false AND seq"),
    ),
    "child cancelled by an operator revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.CHILD_STATES, " AND cancel_reason = 'parent-failed'", ""),
        (edges.REOPEN, " AND cancel_reason = 'parent-failed'", ""),
    ),
    "replayed child does not wait for its other parents": bug(
        "test_a_replayed_child_runs_although_its_parent_failed", (edges.WAIT_AGAIN, "SET state = 3", "SET state = 0")
    ),
    "child released by its replacement": bug(
        "test_a_rescheduled_child_still_waits", (RESCHEDULE, "THEN 3 ELSE 0 END", "THEN 0 ELSE 0 END")
    ),
    "parent of an unfinished child pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (inspector.FINISHED_BEFORE, "NOT (:spares_parents AND", "NOT (:spares_parents AND false AND"),
    ),
    "parents counted that no longer hold up the job": bug(
        "test_relatives_are_listed", (inspector.NUMBER_OF_RELATIVES, " AND e.outcome = 0", "")
    ),
    "rescheduled job with its old message": bug(
        "test_the_id_of_a_rescheduled_job_belongs_to_its_new_content",
        (RESCHEDULE, "wire = chosen.wire", "wire = j.wire"),
    ),
}


class WritesOneByOne(PostgresState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        versions: list[int] = []
        for one in writes:
            answer = super().write([one])
            if answer is None:
                return None
            versions += answer
        return versions


class ConditionsDropped(PostgresState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        return super().write([replace(one, if_version=None) for one in writes])


class RefundsWithoutLimit(PostgresState):
    refunded = 0

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        self.refunded -= sum(min(0, one.tokens) for one in spends)
        return super().spend([replace(one, burst=one.burst + self.refunded) for one in spends])


class CarriesForAll(PostgresJobs):
    """Applies the extras of all settlements of a batch, even refused ones."""

    def _carry(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        applied: Sequence[bool],
        locked: LockedSlots | None,
    ) -> None:
        super()._carry(connection, settlements, [True] * len(applied), locked)


class CarriesForRepetitions(PostgresJobs):
    """Applies the extras of repeated settlements again."""

    def _carry(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        applied: Sequence[bool],
        locked: LockedSlots | None,
    ) -> None:
        answers = [
            is_new or self._settled_before(connection, one) for one, is_new in zip(settlements, applied, strict=True)
        ]
        super()._carry(connection, settlements, answers, locked)


class TransactionsCarryNothing(PostgresJobs):
    def _settle_in(self, connection: Connection, settlements: Sequence[Settlement]) -> tuple[list[bool], bool]:
        return super()._settle_in(connection, [replace(one, writes=(), enqueues=()) for one in settlements])


class LooksFirst(slots.PostgresSlots):
    """Reads the places before it locks the slots."""

    seen: Sequence[Place] = ()

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        self.now_us = self._rows(f"SELECT {CLOCK}", {})[0][0]
        self.seen = super().places(names)
        return super().lock(names)

    def places(self, names: Sequence[str]) -> list[Place]:
        return list(self.seen)


class LooksBeforeLocking(PostgresJobs):
    def _lock_slots(self, connection: Connection, names: Iterable[str]) -> LockedSlots:
        return LockedSlots(LooksFirst(connection, self._sql, self._announcements), names)


class BlocksWithoutANote(slots.PostgresSlots):
    """Leaves no note on a job that is cancelled instead of blocked."""

    def block(self, waiters: Sequence[Waiter]) -> None:
        sql: Callable[[str], bytes] = self._sql

        def unnoted(statement: str) -> bytes:
            return b"SELECT 1" if statement == edges.NOTE_ENDED else sql(statement)

        self._sql = unnoted
        super().block(waiters)


class EntersWithoutANote(PostgresJobs):
    def _lock_slots(self, connection: Connection, names: Iterable[str]) -> LockedSlots:
        return LockedSlots(BlocksWithoutANote(connection, self._sql, self._announcements), names)


class TransactionsLeaveNothing(PostgresJobs):
    def _settle_in(self, connection: Connection, settlements: Sequence[Settlement]) -> tuple[list[bool], bool]:
        return super()._settle_in(connection, [replace(one, leaves=()) for one in settlements])


# Python code decides this, so the bug is planted there.
STATES: dict[str, tuple[str, type[PostgresState]]] = {
    "writes before a failed condition committed": ("test_a_failed_condition_refuses_all_writes", WritesOneByOne),
    "conditions dropped": ("test_of_many_writers_of_one_version_one_wins", ConditionsDropped),
    "refund without limit": ("test_a_refund_never_fills_a_bucket_above_its_burst", RefundsWithoutLimit),
}
JOBS: dict[str, tuple[str, type[PostgresJobs]]] = {
    "refused settlement carries": ("test_a_refused_settlement_carries_nothing", CarriesForAll),
    "repeated settlement carries again": ("test_a_repeated_settlement_carries_nothing_twice", CarriesForRepetitions),
    "transaction carries nothing": ("test_a_transaction_applies_writes_and_enqueues", TransactionsCarryNothing),
    "refused settlement leaves": ("test_a_refused_settlement_leaves_nothing", CarriesForAll),
    "transaction leaves nothing": ("test_a_transaction_leaves_with_its_commit", TransactionsLeaveNothing),
    "parent cancelled on entry not noted": ("test_every_end_of_a_parent_is_noticed", EntersWithoutANote),
    "places read before the slots are locked": ("test_racing_jobs_never_exceed_the_places", LooksBeforeLocking),
}


def planted(
    bug: Bug, state: type[PostgresState] = PostgresState, jobs: type[PostgresJobs] = PostgresJobs
) -> type[PostgresEngine]:
    """The engine with these edits, composed of these parts."""
    planting = Planting(bug.edits)

    class Planted(PostgresEngine):
        def __init__(
            self,
            conninfo: str,
            envelopes: EnvelopeFactory,
            *,
            policy: LeasePolicy = DEFAULT_POLICY,
            clock: Clock = SYSTEM_CLOCK,
            prefix: str = "holdfast_",
        ) -> None:
            super().__init__(conninfo, envelopes, policy=policy, clock=clock, prefix=prefix)
            sql = self.connections.sql
            self.connections.sql = lambda statement: sql(planting.edited(statement, clock))
            self.state = state(self.connections, self._announcements)
            self.jobs = jobs(self.connections, self._announcements, policy, clock)

    return Planted


@contextmanager
def lab_of(
    bug: Bug, state: type[PostgresState] = PostgresState, jobs: type[PostgresJobs] = PostgresJobs
) -> Generator[Lab]:
    with postgres_lab(planted(bug, state, jobs)) as lab:
        yield lab


LEAVES_BY_SLOT_NAME = bug(
    "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot", *BUGS["everyone leaves with the first"].edits
)
SOUND = bug("")
HEALTHY = partial(lab_of, SOUND)
PLANTS = {
    **{name: Plant(bug.breaks, partial(lab_of, bug)) for name, bug in BUGS.items()},
    **{name: Plant(breaks, partial(lab_of, SOUND, state=part)) for name, (breaks, part) in STATES.items()},
    **{name: Plant(breaks, partial(lab_of, SOUND, jobs=part)) for name, (breaks, part) in JOBS.items()},
    "late settlement leaves by slot name": Plant(
        LEAVES_BY_SLOT_NAME.breaks, partial(lab_of, LEAVES_BY_SLOT_NAME, jobs=CarriesForAll)
    ),
}
