"""Bugs for the SQLite engine: statements that lack a condition or a column."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.clock import Clock
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.engines.sqlite import edges, notes, records as inspector, slots, state
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.engines.sqlite.jobs import (
    ACK,
    CANDIDATES,
    CHOSEN,
    CLAIM,
    CLAMP,
    END,
    EXPIRE,
    GIVE_BACK,
    HAS_EXPIRED,
    IS_PAUSED,
    LEASE_STATES,
    LEASED_BEFORE,
    NEXT_DUE,
    REAP,
    RENEW,
    REPLACE_MESSAGE,
    REPORT_OUTPUT,
    REPORT_PROGRESS,
    RESCHEDULE,
    SETTLED_AS,
    STAMPED,
)
from holdfast.queues.engines.tables.rows import LONG_US, MANY
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab

from .planting import Bug, Edit, Plant, Planting, bug

# In memory, because these tests do not depend on the disk.
RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None

COUNTS_A_CRASH = f"THEN min(coalesce(crashes, 0), {MANY}) + 1"

BUGS: dict[str, Bug] = {
    "takeover robs every worker": bug(
        "test_leases_of_other_sessions_stay", (EXPIRE, " AND owner_token BETWEEN :first AND :last", "")
    ),
    "takeover robs the next session": bug(
        "test_leases_of_other_sessions_stay", (EXPIRE, "BETWEEN :first AND :last", ">= :first")
    ),
    "takeover counts leases that have expired": bug(
        "test_a_lease_expires_only_once", (EXPIRE, " AND lease_until > :now", "")
    ),
    "ack without token check": bug("test_a_forged_token_cannot_settle", (ACK, "AND owner_token = :token ", "")),
    "nack without token check": bug("test_a_forged_token_cannot_settle", (GIVE_BACK, "AND owner_token = :token ", "")),
    "abandon without token check": bug(
        "test_a_lease_of_one_job_cannot_settle_another", (END, "AND owner_token = :token ", "")
    ),
    "ack accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (ACK, " AND lease_until > :now", "")
    ),
    "nack accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
        (GIVE_BACK, " AND lease_until > :now", ""),
    ),
    "abandon accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (END, " AND lease_until > :now", "")
    ),
    "lease one microsecond too long": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
        (ACK, "lease_until > :now", "lease_until >= :now"),
    ),
    "renewal revives an ended lease": bug(
        "test_an_expired_lease_is_never_revived", (RENEW, " AND lease_until > :now", "")
    ),
    "renewal without token check": bug("test_a_forged_lease_is_lost", (RENEW, "AND owner_token = :token ", "")),
    "renewal by a length of its own": bug(
        "test_a_renewal_does_not_change_the_length_of_a_lease",
        (RENEW, f"min(lease_us, {LONG_US})", "60000000"),
    ),
    "reaper takes living leases": bug(
        "test_the_reaper_does_not_touch_unexpired_leases",
        (HAS_EXPIRED, "lease_until <= :now OR", "1 OR"),
        (REAP, " AND lease_until <= :now", ""),
    ),
    "reaper records the wrong start of the run": bug(
        "test_a_delivery_without_a_verdict_lasted_from_its_claim_until_it_was_reaped",
        (REAP, "RETURNING seq, deliveries, coalesce(claimed_at, :now)", "RETURNING seq, deliveries, :now"),
    ),
    "crash not counted": bug(
        "test_a_reaped_job_is_pending_with_one_crash_and_no_attempt", (REAP, COUNTS_A_CRASH, "THEN 0")
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
        (GIVE_BACK, "THEN coalesce(crashes, 0) ELSE 0 END", "THEN crashes ELSE crashes END"),
    ),
    "crashes reset by handing back": bug(
        "test_releasing_an_unstarted_job_does_not_change_its_crashes",
        (GIVE_BACK, "WHEN :keeps_crashes THEN coalesce(crashes, 0) ELSE 0 END", "ELSE 0 END"),
    ),
    "crashes reset by a rejection": bug(
        "test_a_job_that_was_never_started_retains_its_crashes",
        (END, "CASE WHEN :keeps_crashes THEN coalesce(crashes, 0) ELSE 0 END", "0"),
    ),
    "suspect claimed with others": bug(
        "test_a_suspect_at_the_head_of_the_queue_comes_alone",
        (CANDIDATES, "SELECT seq, crashes", "SELECT seq, 0 AS crashes"),
    ),
    "delivered early": bug(
        "test_a_job_is_never_delivered_early",
        (CANDIDATES, "due_at <= :now", "due_at <= :now + 1000000"),
        (CHOSEN, "due_at <= :now", "due_at <= :now + 1000000"),
    ),
    "delivered late": bug(
        "test_a_job_is_never_delivered_early",
        (CANDIDATES, "due_at <= :now", "due_at < :now"),
        (CHOSEN, "due_at <= :now", "due_at < :now"),
    ),
    "due time not in the order": bug(
        "test_a_small_claim_returns_the_first_in_order",
        (CANDIDATES, "ORDER BY due_at, id", "ORDER BY id"),
        (CHOSEN, "ORDER BY due_at, id", "ORDER BY id"),
    ),
    "repeated claim stamps new jobs": bug(
        "test_a_repeated_claim_returns_what_it_stamped", (LEASED_BEFORE, "state = 2", "state = 9")
    ),
    "repeated claim returns ended leases": bug(
        "test_a_repeated_claim_does_not_return_an_expired_lease",
        (STAMPED, " AND lease_until > :now", ""),
        (LEASED_BEFORE, " AND j.lease_until > :now", ""),
    ),
    "repeated claim of any queue": bug(
        "test_the_same_token_on_another_queue_is_another_claim",
        (STAMPED, " AND queue = :queue", ""),
        (LEASED_BEFORE, " AND j.queue = :queue", ""),
    ),
    "pause ignored": bug(
        "test_a_paused_queue_returns_nothing_and_others_are_not_affected", (IS_PAUSED, "queue = ?", "queue = ? AND 0")
    ),
    "delivery not counted": bug(
        "test_a_delivery_is_counted_once_per_claim",
        (CLAIM, f"deliveries = min(deliveries, {MANY}) + 1", "deliveries = max(deliveries, 1)"),
    ),
    "attempt lost on nack": bug("test_a_nack_costs_an_attempt_and_waits_for_its_retry", (GIVE_BACK, " + :attempt", "")),
    "attempt counted on release": bug("test_a_release_costs_no_attempt", (GIVE_BACK, " + :attempt", " + 1")),
    "transaction outlives its lease": bug(
        "test_a_transaction_whose_lease_has_expired_is_rolled_back",
        (ACK, " AND lease_until > :now", ""),
    ),
    "dead reason lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (END, "dead_reason = :dead_reason", "dead_reason = NULL")
    ),
    "last error lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (END, "coalesce(:error, last_error)", "NULL")
    ),
    "cancel request lost on retry": bug(
        "test_a_job_with_a_cancellation_request_is_not_retried",
        (GIVE_BACK, "CASE WHEN cancel_request IS NOT NULL THEN 6\n", "CASE\n"),
    ),
    "cancel request lost by the reaper": bug(
        "test_a_job_with_a_cancellation_request_is_cancelled_when_it_is_reaped",
        (REAP, "CASE WHEN cancel_request IS NOT NULL THEN 6\n", "CASE\n"),
    ),
    "cancel request seen once": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (RENEW, "SET lease_until = :now", "SET cancel_request = NULL, lease_until = :now"),
    ),
    "repeated settlement refused": bug(
        "test_a_repeated_settlement_answers_true_and_changes_nothing", (SETTLED_AS, "verdict = ?", "verdict = ? AND 0")
    ),
    "other verdict taken for a repetition": bug(
        "test_another_verdict_with_the_same_token_is_refused",
        (SETTLED_AS, "verdict = ?", "(verdict = ? OR verdict IS NOT NULL)"),
    ),
    "clock set back reaps": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (CLAMP, "SET lease_until = :now + lease_us", "SET lease_until = :now"),
    ),
    "clock set back holds for ever": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (CLAMP, "WHERE state = 2", "WHERE state = 9"),
    ),
    "replay keeps crashes": bug("test_a_replayed_job_is_not_a_suspect", (inspector.REPLAY, "crashes = 0, ", "")),
    "replay of a running job": bug(
        "test_only_dead_and_cancelled_jobs_are_replayed", (inspector.REPLAY, "IN (5, 6)", "IN (2, 5, 6)")
    ),
    "replay of a completed job": bug(
        "test_only_dead_and_cancelled_jobs_are_replayed", (inspector.REPLAY, "IN (5, 6)", "IN (4, 5, 6)")
    ),
    "replay forgets to ignore the expiry": bug(
        "test_a_dead_letter_can_be_replayed_with_its_expiry_ignored",
        (inspector.REPLAY, "ignore_expiry OR :ignore_expiry", "0"),
    ),
    "tombstone free too soon": bug(
        "test_a_purged_id_is_known_for_an_hour_and_then_free", (inspector.FORGET, ":until", ":until - 1800000000")
    ),
    "attempts of a purged job stay": bug(
        "test_a_job_accepted_after_a_purge_inherits_nothing",
        (inspector.DELETE_ATTEMPTS, "WHERE", "WHERE 0 AND"),
    ),
    "progress of a purged job stays": bug(
        "test_a_job_accepted_after_a_purge_inherits_nothing",
        (inspector.DELETE_PROGRESS, "WHERE", "WHERE 0 AND"),
    ),
    "output of a purged job stays": bug(
        "test_a_job_accepted_after_a_purge_inherits_nothing",
        (inspector.DELETE_OUTPUTS, "WHERE", "WHERE 0 AND"),
    ),
    "next due job of another queue": bug(
        "test_a_wait_ends_when_a_job_is_due", (NEXT_DUE, "queue = :queue", "queue <> :queue")
    ),
    "progress without token check": bug(
        "test_a_stale_lease_cannot_report_progress", (REPORT_PROGRESS, "AND owner_token = :token ", "")
    ),
    "progress accepted after the lease ended": bug(
        "test_a_stale_lease_cannot_report_progress", (REPORT_PROGRESS, " AND lease_until > :now", "")
    ),
    "progress of a finished job": bug(
        "test_a_settled_job_accepts_no_more_progress", (REPORT_PROGRESS, " AND state = 2", "")
    ),
    "second report keeps the delivery of the first": bug(
        "test_a_crash_loop_shows_the_progress_of_its_last_delivery",
        (REPORT_PROGRESS, "delivery = excluded.delivery, ", ""),
    ),
    "output without token check": bug(
        "test_a_stale_lease_cannot_report_output", (REPORT_OUTPUT, "AND owner_token = :token ", "")
    ),
    "output accepted after the lease ended": bug(
        "test_a_stale_lease_cannot_report_output", (REPORT_OUTPUT, " AND lease_until > :now", "")
    ),
    "output of a finished job": bug("test_a_settled_job_accepts_no_more_output", (REPORT_OUTPUT, " AND state = 2", "")),
    "output of the first delivery": bug(
        "test_the_output_of_a_crashed_delivery_is_retained",
        (REPORT_OUTPUT, "SELECT seq, deliveries", "SELECT seq, 1"),
    ),
    "first output stays": bug(
        "test_the_latest_output_replaces_the_previous_one",
        (REPORT_OUTPUT, "DO UPDATE SET start = excluded.start, text = excluded.text", "DO NOTHING"),
    ),
    "a look finds every lease held": bug(
        "test_lease_states_are_read_without_extending_a_lease",
        (LEASE_STATES, " AND state = 2 AND lease_until > :now", ""),
    ),
    "a look finds nothing cancelled": bug(
        "test_lease_states_are_read_without_extending_a_lease",
        (LEASE_STATES, "cancel_request IS NOT NULL", "0"),
    ),
    "expired cells read": bug(
        "test_an_expired_cell_is_absent_before_it_is_swept",
        (state.READ_THESE, "(expires_at IS NULL OR expires_at > :now)", "1"),
    ),
    "expired cells listed": bug(
        "test_an_expired_cell_is_absent_before_it_is_swept",
        (state.READ, "(expires_at IS NULL OR expires_at > :now)", "1"),
    ),
    "cells of every kind": bug(
        "test_every_handle_reads_what_was_written", (state.READ, "kind = :kind", ":kind = :kind")
    ),
    "versions start again": bug(
        "test_versions_grow_across_drop_expiry_and_sweep", (state.STORED, "value, version, expires_at", "value, 1, 1")
    ),
    "swept while the version is ahead": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (state.IS_SWEPT, " AND version < :now", ""),
        (state.SWEEP_CELLS, " AND version < :now", ""),
    ),
    "live cells swept": bug(
        "test_sweeping_deletes_only_what_has_expired",
        (state.SWEEP_CELLS, "expires_at <= :now AND", ""),
    ),
    "busy buckets swept": bug(
        "test_sweeping_deletes_only_what_has_expired", (state.SWEEP_BUCKETS, "full_at <= :now", "1")
    ),
    "spent tokens forgotten": bug(
        "test_a_bucket_grants_its_burst_and_then_its_rate", (state.FULL_AT, "SELECT full_at", "SELECT 0")
    ),
    "holders counted without their leases": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (slots.IS_TAKEN, " AND held.lease_until > :now", ""),
    ),
    "holders counted without their claims": bug(
        "test_a_dead_holder_is_noticed_by_the_reaper",
        (slots.IS_TAKEN, "held.owner_token = p.owner_token AND held.state = 2 AND held.lease_until > :now", "1"),
    ),
    "entry without token check": bug(
        "test_a_job_without_a_lease_cannot_enter", (slots.HELD, "AND owner_token = :token ", "AND :token = :token ")
    ),
    "entry after the lease ended": bug(
        "test_a_job_without_a_lease_cannot_enter", (slots.HELD, " AND lease_until > :now", "")
    ),
    "promotion that never ends": bug(
        "test_a_promotion_expires", (slots.PLACES, "CAST(coalesce(p.until, 0) AS INTEGER)", ":now + 1")
    ),
    "promotion ends though its job can still enter": bug(
        "test_jobs_that_no_worker_claims_for_long_are_claimed_at_most_twice",
        (slots.IS_TAKEN, "ELSE held.queue", "ELSE p.until > :now AND held.queue"),
    ),
    "promotion ends with the claim of its job": bug(
        "test_a_promoted_job_that_enters_late_does_not_lose_its_place",
        (
            slots.IS_TAKEN,
            "WHEN held.state = 2 THEN held.queue",
            "WHEN held.state = 2 THEN p.until > :now AND held.queue",
        ),
    ),
    "promotion outlives the lease of its job": bug(
        "test_a_promoted_job_that_dies_before_it_enters_passes_the_slot_on",
        (slots.IS_TAKEN, "THEN held.queue = p.queue AND held.lease_until > :now", "THEN held.queue = p.queue"),
    ),
    "promotion of a job that is not due": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, " AND held.due_at <= :now END", " END"),
    ),
    "promotion in the queue that a job has left": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, "ELSE held.queue = p.queue AND", "ELSE"),
    ),
    "job returned unstarted loses its turn": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "seq = ?", "seq = ? AND 0")
    ),
    "job returned unstarted has no promotion mark": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "until = ?", "until = 0 * ?")
    ),
    "blocked despite a request to cancel": bug(
        "test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked",
        (slots.BLOCK, "CASE WHEN cancel_request IS NULL THEN 3 ELSE 6 END", "3"),
    ),
    "cancelled instead of blocked without its reason": bug(
        "test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked",
        (slots.BLOCK, "cancel_reason = cancel_request", "cancel_reason = ''"),
    ),
    "larger limit not looked for": bug(
        "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
        (slots.BEST, "places > ?", "places > 0 * ?"),
    ),
    "no promotion mark": bug("test_a_newcomer_does_not_overtake_a_promoted_job", (slots.MARK, "?, ?)", "?, 0 * ?)")),
    "one job leaves for all": bug(
        "test_as_many_jobs_enter_as_the_slot_has_places", (slots.FREE, "slot = ? AND seq = ?", "slot = ? OR seq = ?")
    ),
    "a refused settlement leaves": bug(
        "test_a_refused_settlement_leaves_nothing", (ACK, "AND owner_token = :token ", "")
    ),
    "a late settlement leaves": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot", (ACK, " AND lease_until > :now", "")
    ),
    "a late transaction leaves": bug(
        "test_a_transaction_that_lost_its_lease_leaves_nothing", (ACK, " AND lease_until > :now", "")
    ),
    "only one queue promoted": bug(
        "test_a_paused_queue_does_not_keep_the_others_waiting",
        (slots.QUEUES, "FROM waiting WHERE queue IS NOT NULL", "FROM waiting WHERE queue = 'slow'"),
    ),
    "priority not in the order of promotions": bug(
        "test_the_best_waiting_job_is_promoted", (slots.BEST, "ORDER BY lane, due_at, id", "ORDER BY due_at, id")
    ),
    "priority inverted in the order of promotions": bug(
        "test_the_best_waiting_job_is_promoted", (slots.STORE_WAITER, "9 - priority", "priority")
    ),
    "a cancelled job is promoted": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (slots.STOP_WAITING, "seq = ?", "seq = ? AND 0"),
        (slots.PROMOTE, " AND state = 3", ""),
    ),
    "a rescheduled job still waits": bug(
        "test_a_blocked_job_can_be_rescheduled",
        (slots.STOP_WAITING, "seq = ?", "seq = ? AND 0"),
        (inspector.COUNT_WAITERS, " AND j.state = 3", ""),
        (inspector.USED_SLOTS, " AND j.state = 3", ""),
    ),
    "a cancelled job is still blocked": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (slots.STOP_WAITING, "seq = ?", "seq = ? AND 0"),
        (inspector.VIEW_COLUMNS, "b.seq = j.seq AND j.state = 3", "b.seq = j.seq"),
    ),
    "blocking counts as a crash": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost",
        (slots.BLOCK, "owner_token = NULL", "owner_token = NULL, crashes = crashes + 1"),
    ),
    "blocked jobs not counted": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost",
        (inspector.COUNT_BLOCKED, "j.state = 3", "j.state = 9"),
    ),
    "fences start again at 1": bug(
        "test_fences_grow_from_holder_to_holder", (slots.SLOTS, "SELECT name, fence", "SELECT name, 0")
    ),
    "fences not stored": bug(
        "test_fences_grow_from_holder_to_holder", (slots.STORE_SLOT, "VALUES (?, ?", "VALUES (?, 0 * ?")
    ),
    "a repeated entry gets another fence": bug(
        "test_repeating_an_entry_returns_the_same_fence", (slots.PLACES, "coalesce(p.fence, 0)", "p.fence + 1")
    ),
    "repair finds nothing": bug(
        "test_repair_finishes_what_a_reaper_left_undone", (slots.TO_REPAIR, "LIMIT :limit", "LIMIT 0 * :limit")
    ),
    "repair trusts promotions of jobs that have ended": bug(
        "test_a_promoted_job_that_was_cancelled_passes_the_slot_on",
        (slots.TO_REPAIR, "held.state <= 1", "held.state <= 6"),
    ),
    "keys in use deleted": bug(
        "test_unused_keys_are_deleted",
        (inspector.UNUSED_KEYS, "j.state < 4", "j.state < 0"),
        (inspector.DELETE_UNUSED_KEY, "j.state < 4", "j.state < 0"),
    ),
    "unique key not read": bug(
        "test_a_second_job_with_the_key_is_not_stored", (slots.UNIQUE, "key = ?", "key = ? AND 0")
    ),
    "unique key of the first job stays": bug(
        "test_while_it_waits_ends_with_the_start_of_the_job", (slots.STORE_UNIQUE, "OR REPLACE", "OR IGNORE")
    ),
    "finished jobs hold their keys": bug(
        "test_until_done_ends_with_the_job", (slots.STATES_OF, "SELECT id, state", "SELECT id, min(state, 2)")
    ),
    "period without an end": bug(
        "test_a_period_ends_by_the_clock_alone", (slots.UNIQUE, "SELECT key, id, until", "SELECT key, id, until * 2")
    ),
    "running job rescheduled": bug(
        "test_a_job_that_has_started_is_not_rescheduled", (RESCHEDULE, "IN (0, 1, 3)", "IN (0, 1, 2, 3)")
    ),
    "finished job rescheduled": bug(
        "test_a_job_that_has_started_is_not_rescheduled", (RESCHEDULE, "IN (0, 1, 3)", "IN (0, 1, 3, 4)")
    ),
    "rescheduled with the old message": bug(
        "test_a_rescheduled_job_gets_its_new_message_and_time", (REPLACE_MESSAGE, "OR REPLACE", "OR IGNORE")
    ),
    "rescheduled in the old queue": bug(
        "test_a_rescheduled_job_is_counted_once", (RESCHEDULE, "queue = :queue, ", "queue = queue, ")
    ),
    "rescheduled without its attempts": bug(
        "test_a_failed_job_can_be_rescheduled_and_keeps_its_attempts",
        (RESCHEDULE, "SET state", "SET attempts = 0, state"),
    ),
    "stored size ignored": bug(
        "test_a_slot_of_size_0_admits_no_job_and_promotes_none", (slots.SLOTS, "THEN size END", "THEN NULL END")
    ),
    "closed slot admits": bug(
        "test_a_closed_slot_admits_no_job_before_its_time", (slots.SLOTS, "END, closed_until", "END, 0")
    ),
    "closed slot never opens": bug(
        "test_a_slot_that_was_closed_admits_its_size_afterwards",
        (slots.TO_REPAIR, "CAST(s.closed_until AS INTEGER) > :now", "s.closed_until > 0"),
    ),
    "slot not opened if a promoted job waits": bug(
        "test_a_queue_that_nobody_works_on_does_not_keep_a_slot_closed",
        (slots.TO_REPAIR, "CAST(s.closed_until AS INTEGER) > 0", "false"),
    ),
    "size deleted with an unused slot": bug(
        "test_an_unused_slot_keeps_its_size_and_its_closing_time",
        (inspector.UNUSED_SLOTS, " AND s.size IS NULL", ""),
        (inspector.DELETE_UNUSED_SLOT, " AND s.size IS NULL", ""),
    ),
    "completed parents not noted": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (notes.NOTE_ENDED, "j.state < 4", "j.state <= 4")
    ),
    "dead parents not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (notes.NOTE_ENDED, "j.state < 4", "(j.state < 4 OR j.state = 5)")
    ),
    "reaped parents not noted": bug(
        "test_every_end_of_a_parent_is_noticed",
        (notes.NOTE_ENDED, "j.state < 4", "(j.state < 4 OR j.state = 5 AND j.owner_token IS NULL)"),
    ),
    "parents that were cancelled while they waited not noted": bug(
        "test_every_end_of_a_parent_is_noticed",
        (notes.NOTE_ENDED, "j.state < 4", "(j.state < 4 OR j.state = 6 AND j.deliveries = 0)"),
    ),
    "parents that were cancelled on entry not noted": bug(
        "test_every_end_of_a_parent_is_noticed",
        (notes.NOTE_ENDED, "j.state < 4", "(j.state < 4 OR j.state = 6 AND j.deliveries > 0 AND owner_token IS NULL)"),
    ),
    "deleted parents not noted": bug(
        "test_a_deleted_parent_counts_as_failed",
        (notes.NOTE_ENDED, "NOT EXISTS (SELECT 1", "4 <= (SELECT min(j.state)"),
        (notes.NOTE_ENDED, "j.state < 4", "j.state < 7"),
    ),
    "replayed parents not noted": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (notes.NOTE_REOPENED, "e.outcome = 2", "e.outcome = 9"),
    ),
    "an older note hides the end": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (notes.NOTE_ENDED, "INSERT OR REPLACE", "INSERT OR IGNORE"),
    ),
    "repair does not read the notes": bug(
        "test_a_cascade_reaches_every_descendant",
        (slots.TO_REPAIR, "EXISTS (SELECT 1 FROM holdfast_notes)", "false"),
    ),
    "notes with something to do dismissed": bug(
        "test_no_call_changes_more_than_a_thousand_children",
        (edges.DISMISS, "j.state NOT IN (4, 5, 6, 7)", "j.state < 7"),
    ),
    "notes of replays dismissed": bug(
        "test_a_replayed_parent_that_completes_at_once_releases_all_that_it_cancelled",
        (edges.DISMISS, "e.outcome = 2", "e.outcome = 9"),
        (edges.DISMISS, "j.state NOT IN (4, 5, 6, 7)", "j.state < 5"),
    ),
    "edges that a completed parent has cancelled not found": bug(
        "test_a_replayed_parent_that_completes_at_once_releases_all_that_it_cancelled",
        (
            edges.EDGES,
            "outcome = ?",
            "outcome = ? AND (outcome = 0 OR EXISTS (SELECT 1 FROM holdfast_jobs WHERE seq = parent AND state < 4))",
        ),
    ),
    "edges of all policies turned": bug(
        "test_a_parent_that_has_ended_counts_at_once", (edges.EDGES, "policy = ?", "policy >= 0 * ?")
    ),
    "the first parent releases the child": bug(
        "test_parents_that_complete_one_after_the_other_release_the_child_once",
        (edges.EDGE_OUTCOMES, "child, outcome", "child, 1"),
    ),
    "jobs cancelled by hand are revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.CHILDREN, " AND cancel_reason = 'parent-failed'", ""),
    ),
    "jobs that run again are cancelled": bug(
        "test_a_cancelled_child_stays_cancelled",
        (edges.CHILDREN, " AND cancel_reason = 'parent-failed'", ""),
    ),
    "released at once instead of later": bug(
        "test_a_released_child_keeps_its_due_time_and_priority",
        (edges.RELEASE, "SET state = 0", "SET state = 0, due_at = 0"),
    ),
    "released with the same priority": bug(
        "test_a_released_child_keeps_its_due_time_and_priority",
        (edges.RELEASE, "SET state = 0", "SET state = 0, priority = 5"),
    ),
    "cancelled by its parent without a reason": bug(
        "test_every_end_of_a_parent_is_noticed", (edges.CANCEL, "cancel_reason = 'parent-failed'", "cancel_reason = ''")
    ),
    "cancelled by its parent without an end": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.REOPEN, "finished_at = NULL", "finished_at = finished_at"),
    ),
    "tombstones as parents": bug(
        "test_an_unknown_parent_refuses_the_whole_call", (edges.NUMBERS, " AND state < 7", "")
    ),
    "children claimable before their parents end": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed",
        (edges.BLOCK_CHILDREN, "SET state = 3", "SET state = 0"),
    ),
    "rescheduled before its parents end": bug(
        "test_a_rescheduled_child_still_waits", (RESCHEDULE, "e.outcome = 0", "e.outcome = 9")
    ),
    "replayed before its other parents end": bug(
        "test_a_replayed_child_runs_although_its_parent_failed", (inspector.REPLAY, "e.outcome = 0", "e.outcome = 9")
    ),
    "replayed but still waiting for a failed parent": bug(
        "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed",
        (inspector.DISREGARD_FAILED, "outcome = 2", "outcome = 9"),
    ),
    "parents of waiting jobs pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (inspector.FINISHED_BEFORE, ":spares_parents AND", "0 * :spares_parents AND"),
    ),
    "parents of released jobs pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (inspector.FINISHED_BEFORE, "e.parent = j.seq", "e.parent = j.seq AND e.outcome = 0"),
    ),
    "jobs that wait for others not counted": bug(
        "test_blocked_children_are_counted_and_found", (inspector.COUNT_BLOCKED, "outcome = 0", "outcome = 9")
    ),
    "met edges counted as open": bug("test_relatives_are_listed", (inspector.COUNT_RELATIVES, " AND outcome = 0", "")),
    "scheduled counted as pending": bug(
        "test_every_job_is_counted_in_one_state", (inspector.COUNT_WAITING, "due_at > :now", "0")
    ),
    "wait of the most urgent job only": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "(0), (1), (2), ", "")
    ),
    "wait of one queue only": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "queue > waiting.queue", "0")
    ),
    "leased jobs wait": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "state <= 1", "state <= 2")
    ),
}


def planted(edits: Iterable[Edit]) -> type[SqliteEngine]:
    """The engine with these edits."""
    planting = Planting(edits)

    class Planted(SqliteEngine):
        def __init__(self, path: Path, envelopes: EnvelopeFactory, *, policy: LeasePolicy, clock: Clock) -> None:
            super().__init__(path, envelopes, policy=policy, clock=clock)
            sql = self.file.sql
            self.file.sql = lambda statement: sql(planting.edited(statement, clock))

    return Planted


@contextmanager
def lab_of(bug: Bug) -> Generator[Lab]:
    backend = planted(bug.edits)
    with TemporaryDirectory(dir=RAM) as folder:

        def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
            return backend(Path(folder) / "jobs.db", envelopes, policy=policy, clock=clock)

        with Lab(connect) as lab:
            yield lab


HEALTHY = partial(lab_of, bug(""))
PLANTS = {name: Plant(bug.breaks, partial(lab_of, bug)) for name, bug in BUGS.items()}
