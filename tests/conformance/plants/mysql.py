"""Bugs for the MySQL engine: statements that lack a condition, a lock, a column or the lane of a job."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.errors import StateConflict
from holdfast.queues.contract import (
    EngineTransaction,
    LeasePolicy,
    LockedSlots,
    Place,
    SlotRow,
    find_duplicates,
    left_slots,
    slot_names,
)
from holdfast.queues.contract.state import parted
from holdfast.queues.engines.mysql import edges, records as inspector, slots, state
from holdfast.queues.engines.mysql.claims import (
    CLAIM,
    HELD,
    LEASES,
    LOCK_DUE,
    LOCK_THESE,
    LOOK,
    LOOK_AND_FIND_PARENTS,
    NEXT_DUE,
    NOW,
    PASS_GATE,
    MysqlClaims,
)
from holdfast.queues.engines.mysql.connections import CLOCK, Session
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.mysql.jobs import (
    ACK,
    CLAMP,
    DELETE_LIVE_OUTPUT,
    END,
    EXPIRED,
    GIVE_BACK,
    INSERT_ATTEMPTS,
    INSERT_JOBS,
    INSERT_WITH_CHILDREN,
    KEEP_OUTPUT,
    KEEP_PROGRESS,
    KNOWN,
    LEASE_STATES,
    LEASED_BY,
    LOCK_EXPIRED,
    LOCK_LEASED_BY,
    REAP,
    RENEW,
    RESCHEDULE,
    SETTLED_AS,
    MysqlJobs,
)
from holdfast.queues.engines.mysql.lanes import PLACE
from holdfast.queues.engines.mysql.slots import MysqlSlots, MysqlUniques
from holdfast.queues.engines.mysql.state import MysqlState, write_cells
from holdfast.queues.engines.tables.rows import LONG_US, MANY, NEVER, Row
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab
from holdfast.values import Accepted, AttemptRecord, Entered, Entry, JobEnvelope, Settlement, Spend, Spent, Write

from ..labs import mysql_lab
from .planting import PROCESS_TIME, Bug, Edit, Plant, Planting, bug

HOLDER = "owner_token = %(token)s AND "
IN_TIME = f" AND lease_until > {CLOCK}"
UNLESS_CANCELLED = "CASE WHEN cancel_request IS NOT NULL THEN 6"
# A delay in the middle of a claim, so that a rare race always happens.
DELAY = "0 * BENCHMARK(20000, SHA2('', 256))"
LONG_DELAY = DELAY.replace("20000", "200000")
# In the meantime, other processes accept a child and resolve its note.
LONGEST_DELAY = DELAY.replace("20000", "4000000")
SLOW = f"seq + {DELAY}"
LIVE = f" AND (expires_at IS NULL OR expires_at > {CLOCK})"

# The same in the middle of a decision about edges between jobs, and before edges are stored.
SLOW_EDGES: Edit = (edges.CHILD_OUTCOMES, "outcome FROM", f"outcome + {LONG_DELAY} FROM")
SLOW_CHILDREN: Edit = (edges.NUMBERS, "seq FROM", f"seq + {LONG_DELAY} FROM")

COUNTS_A_CRASH = f"THEN LEAST(crashes, {MANY}) + 1"

BUGS: dict[str, Bug] = {
    "takeover robs every worker": bug(
        "test_leases_of_other_sessions_stay",
        (LEASED_BY, " AND owner_token BETWEEN %(first)s AND %(last)s", ""),
        (LOCK_LEASED_BY, " AND owner_token BETWEEN %(first)s AND %(last)s", ""),
    ),
    "takeover counts leases that have expired": bug(
        "test_a_lease_expires_only_once", (LOCK_LEASED_BY, "\n        AND lease_until > %(now)s", "")
    ),
    "ack without token check": bug("test_a_forged_token_cannot_settle", (ACK, HOLDER, "")),
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
        (ACK, "lease_until >", "lease_until >="),
    ),
    "lease compared the wrong way round": bug(
        "test_a_lease_can_settle_until_its_last_moment", (ACK, "lease_until >", "lease_until <")
    ),
    "renewal revives an ended lease": bug("test_an_expired_lease_is_never_revived", (RENEW, IN_TIME, "")),
    "renewal without token check": bug(
        "test_a_forged_lease_is_lost", (RENEW, " AND (seq, owner_token) IN %(pairs)s", "")
    ),
    "renewal moves nothing": bug(
        "test_a_renewed_lease_expires_a_full_length_from_now",
        (RENEW, f"lease_until = {CLOCK} + LEAST(lease_us, {LONG_US})", "lease_until = lease_until"),
    ),
    "renewal by a length of its own": bug(
        "test_a_renewal_does_not_change_the_length_of_a_lease",
        (RENEW, f"{CLOCK} + LEAST(lease_us, {LONG_US})", f"{CLOCK} + 60000000"),
    ),
    "reaper takes living leases": bug(
        "test_the_reaper_does_not_touch_unexpired_leases",
        (EXPIRED, "lease_until <= %(now)s", "lease_until > 0"),
        (LOCK_EXPIRED, "lease_until <= %s", "%s > 0"),
        (REAP, " AND lease_until <= %(now)s", ""),
    ),
    "reaper reaps every queue": bug(
        "test_the_reaper_reaps_one_queue_or_all", (EXPIRED, " AND (%(queue)s IS NULL OR queue = %(queue)s)", "")
    ),
    "reaper records the wrong start of the run": bug(
        "test_a_delivery_without_a_verdict_lasted_from_its_claim_until_it_was_reaped",
        (LOCK_EXPIRED, "claimed_at", "lease_until"),
    ),
    "reaped job stays among those that run": bug("test_the_lease_has_the_number_of_crashes", (REAP, f",{PLACE}", "")),
    "crash not counted": bug(
        "test_a_reaped_job_is_pending_with_one_crash_and_no_attempt", (REAP, COUNTS_A_CRASH, "THEN 0")
    ),
    "crash counted before it is compared": bug(
        "test_a_job_is_dead_at_the_crash_limit_and_never_delivered_again",
        (REAP, COUNTS_A_CRASH, "THEN crashes"),
        (REAP, "SET owner_token", "SET crashes = crashes + 1, owner_token"),
    ),
    "crash limit off by one": bug(
        "test_a_job_is_dead_at_the_crash_limit_and_never_delivered_again",
        (REAP, ">= %(crash_limit)s", "> %(crash_limit)s"),
    ),
    "marked crash ignores the limit": bug(
        "test_releases_marked_crashed_count_like_any_crash",
        (GIVE_BACK, ">= %(crash_limit)s", "> 1000 + %(crash_limit)s"),
    ),
    "crashes not reset by a verdict": bug(
        "test_a_verdict_resets_the_crashes",
        (GIVE_BACK, "THEN crashes ELSE 0 END", "THEN crashes ELSE crashes END"),
    ),
    "crashes reset by handing back": bug(
        "test_releasing_an_unstarted_job_does_not_change_its_crashes",
        (GIVE_BACK, "WHEN %(keeps_crashes)s THEN crashes ELSE 0 END", "ELSE 0 END"),
    ),
    "crashes reset by a rejection": bug(
        "test_a_job_that_was_never_started_retains_its_crashes",
        (END, "CASE WHEN %(keeps_crashes)s THEN crashes ELSE 0 END", "0"),
    ),
    "suspect claimed with others": bug(
        "test_a_suspect_at_the_head_of_the_queue_comes_alone", (LOCK_DUE, "' ', crashes, ' '", "' ', 0, ' '")
    ),
    "due time ignored": bug("test_a_claim_of_due_jobs_includes_no_scheduled_one", (LOCK_DUE, "since <= %s", "%s > 0")),
    "delivered early": bug(
        "test_a_job_is_never_delivered_early", (LOOK, f"SELECT {NOW}, {CLOCK}", f"SELECT {NOW}, {CLOCK} + 1000000")
    ),
    "delivered late": bug("test_a_job_is_never_delivered_early", (LOOK, "MIN(since)", "MIN(since) + 1")),
    "due time not in the order": bug(
        "test_equal_priorities_are_ordered_by_due_time", (LOCK_DUE, "ORDER BY since, id", "ORDER BY id")
    ),
    "priorities the wrong way round": bug(
        "test_higher_priorities_come_first",
        (LOOK, "SELECT lane, MIN(since)", "SELECT 9 - lane, MIN(since)"),
        (LOCK_DUE, "lane = %s", "lane = 9 - %s"),
    ),
    "retry in the lane of another priority": bug(
        "test_a_due_retry_is_ordered_by_its_due_time", (GIVE_BACK, "THEN 9 - priority", "THEN priority")
    ),
    "jobs of every queue claimed": bug(
        "test_a_claim_returns_only_jobs_of_its_queue",
        (LOOK, "lane <= 9 AND mark = %(mark)s", "lane <= 9"),
        (LOCK_DUE, "mark = %s", "%s IS NOT NULL"),
    ),
    "limit not applied": bug(
        "test_a_claim_returns_at_most_its_limit",
        (
            LOCK_DUE,
            "since <= %s\n    ORDER BY since, id LIMIT %s",
            "since <= %s AND %s > 0\n    ORDER BY since, id LIMIT 99",
        ),
    ),
    "claim does not lock": bug(
        "test_concurrent_claims_never_share_a_job",
        (LOCK_DUE, " FOR UPDATE SKIP LOCKED", ""),
        (LOCK_DUE, "seq,", f"{SLOW},"),
    ),
    "claim does not look again at what it waited for": bug(
        "test_concurrent_claims_never_share_a_job",
        (LOCK_THESE, "state <= 1 AND due_at <= %s", "%s > 0"),
        options="?skip_locked=off",
    ),
    "same claim not told from another": bug(
        "test_the_same_claim_sent_concurrently_stamps_one_batch",
        (PASS_GATE, " FOR UPDATE", ""),
        (LOCK_DUE, "seq,", f"{SLOW},"),
    ),
    "repeated claim stamps new jobs": bug(
        "test_a_repeated_claim_returns_what_it_stamped", (LOOK, "lane = 10", "lane = 99")
    ),
    "repeated claim returns ended leases": bug(
        "test_a_repeated_claim_does_not_return_an_expired_lease", (LOOK, IN_TIME, ""), (LEASES, IN_TIME, "")
    ),
    "repeated claim of any queue": bug(
        "test_the_same_token_on_another_queue_is_another_claim",
        (LOOK, "%(token)s AND queue = %(queue)s", "%(token)s"),
        (LEASES, " AND queue = %(queue)s", ""),
    ),
    "repeated claim fences late": bug(
        "test_a_repeated_claim_does_not_fence_after_its_lease_expires",
        (LEASES, f"LEAST(lease_until - {CLOCK}, lease_us)", "lease_us"),
    ),
    "pause ignored": bug(
        "test_a_paused_queue_returns_nothing_and_others_are_not_affected",
        (LOOK, "holdfast_pauses WHERE queue = %(queue)s", "holdfast_pauses WHERE queue = ''"),
    ),
    "delivery not counted": bug(
        "test_a_delivery_is_counted_once_per_claim",
        (CLAIM, f"deliveries = LEAST(deliveries, {MANY}) + 1", "deliveries = GREATEST(deliveries, 1)"),
    ),
    "attempt lost on nack": bug(
        "test_a_nack_costs_an_attempt_and_waits_for_its_retry", (GIVE_BACK, " + %(attempt)s", "")
    ),
    "attempt counted on release": bug("test_a_release_costs_no_attempt", (GIVE_BACK, " + %(attempt)s", " + 1")),
    "delay forgotten on nack": bug(
        "test_a_retry_is_never_delivered_early", (GIVE_BACK, "due_at = %(due)s", "due_at = %(now)s")
    ),
    "transaction outlives its lease": bug(
        "test_a_transaction_whose_lease_has_expired_is_rolled_back", (ACK, IN_TIME, "")
    ),
    "dead reason lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (END, "dead_reason = %(dead_reason)s", "dead_reason = NULL")
    ),
    "last error lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (END, "COALESCE(%(error)s, last_error)", "NULL")
    ),
    "expiry of a job not kept": bug(
        "test_an_expired_job_is_replayed_only_if_its_expiry_is_ignored", (END, "expired = %(expired)s", "expired = 0")
    ),
    "output taken for a note": bug(
        "test_the_history_has_every_attempt_in_order",
        (INSERT_ATTEMPTS, "output, result, note", "note, result, output"),
    ),
    "result dropped": bug("test_an_ack_completes_the_job", (inspector.ATTEMPTS, "result", "NULL")),
    "cancel request lost on retry": bug(
        "test_a_job_with_a_cancellation_request_is_not_retried", (GIVE_BACK, UNLESS_CANCELLED, "CASE")
    ),
    "cancel request lost by the reaper": bug(
        "test_a_job_with_a_cancellation_request_is_cancelled_when_it_is_reaped", (REAP, UNLESS_CANCELLED, "CASE")
    ),
    "cancel request forgotten before it is read": bug(
        "test_a_job_with_a_cancellation_request_is_not_released",
        (
            GIVE_BACK,
            "cancel_reason = cancel_request, cancel_request = NULL",
            "cancel_request = NULL, cancel_reason = cancel_request",
        ),
    ),
    "cancel request taken back by a renewal": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (RENEW, "SET lease_until", "SET cancel_request = NULL, lease_until"),
    ),
    "running job cancelled under its worker": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (inspector.CANCEL_WAITING, "IN (0, 1, 3)", "IN (0, 1, 2, 3)"),
    ),
    "repeated settlement refused": bug(
        "test_a_repeated_settlement_answers_true_and_changes_nothing", (SETTLED_AS, "seq IN %s", "seq IN %s AND 0")
    ),
    "clock set back reaps": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (CLAMP, "SET lease_until = %(now)s + GREATEST(lease_us, 0)", "SET lease_until = %(now)s"),
    ),
    "clock set back holds for ever": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped", (CLAMP, "state = 2", "state = 9")
    ),
    "clock of the process asked": bug("test_the_clock_of_a_worker_decides_nothing", (CLOCK, CLOCK, PROCESS_TIME)),
    "same id overwrites": bug(
        "test_the_same_id_with_other_content_is_refused",
        (INSERT_JOBS, "%s, %s)", "%s, %s) ON DUPLICATE KEY UPDATE wire = VALUES(wire)"),
    ),
    "tombstone not looked at": bug(
        "test_a_discarded_id_is_known_for_an_hour_and_then_free", (KNOWN, "state, finished_at", "state, 0")
    ),
    "tombstone free too soon": bug(
        "test_a_purged_id_is_known_for_an_hour_and_then_free",
        (inspector.FORGET, "finished_at = %s", "finished_at = %s - 1800000000"),
    ),
    "purge takes waiting jobs": bug(
        "test_a_purge_deletes_only_jobs_in_the_given_states",
        (
            inspector.LOCK_FINISHED,
            "lane = %(lane)s AND mark = %(mark)s",
            "(lane = %(lane)s AND mark = %(mark)s OR lane <= 9)",
        ),
    ),
    "purge ignores age": bug(
        "test_a_purge_leaves_jobs_that_finished_recently", (inspector.LOCK_FINISHED, " AND since <= %(before)s", "")
    ),
    "replay keeps attempts": bug(
        "test_a_replayed_dead_letter_starts_a_new_life_with_its_history", (inspector.REPLAY, "attempts = 0, ", "")
    ),
    "replay keeps crashes": bug("test_a_replayed_job_is_not_a_suspect", (inspector.REPLAY, "crashes = 0, ", "")),
    "replay of a running job": bug(
        "test_only_dead_and_cancelled_jobs_are_replayed", (inspector.REPLAY, "IN (5, 6)", "IN (2, 5, 6)")
    ),
    "replay forgets to ignore the expiry": bug(
        "test_a_dead_letter_can_be_replayed_with_its_expiry_ignored",
        (inspector.REPLAY, "ignore_expiry OR %(ignore_expiry)s", "0"),
    ),
    "replayed job stays among the dead": bug(
        "test_a_cancelled_job_can_be_replayed", (inspector.REPLAY, f",{PLACE}", "")
    ),
    "scheduled counted as pending": bug(
        "test_every_job_is_counted_in_one_state", (inspector.COUNT, f"state = 0 AND since > {CLOCK}", "0")
    ),
    "wait of the most urgent job only": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "lane <= 9", "lane <= 6")
    ),
    "leased jobs wait": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "lane <= 9", "lane <= 10")
    ),
    "wait of the latest job": bug(
        "test_the_longest_wait_of_each_queue_is_known", (inspector.OLDEST_DUE, "MIN(since)", "MAX(since)")
    ),
    "next due job of another queue": bug(
        "test_a_wait_ends_when_a_job_is_due", (NEXT_DUE, "mark IN %(marks)s", "mark NOT IN %(marks)s")
    ),
    "wait spins while paused": bug(
        "test_a_job_that_cannot_be_claimed_does_not_end_a_wait",
        (NEXT_DUE, "queue IN %(queues)s", "queue IN %(queues)s AND 0"),
    ),
    "progress accepted after the lease ended": bug("test_a_stale_lease_cannot_report_progress", (HELD, IN_TIME, "")),
    "progress of a finished job": bug("test_a_settled_job_accepts_no_more_progress", (HELD, " AND state = 2", "")),
    "second report keeps the delivery of the first": bug(
        "test_a_crash_loop_shows_the_progress_of_its_last_delivery",
        (KEEP_PROGRESS, "delivery = VALUES(delivery), ", ""),
    ),
    "output accepted after the lease ended": bug("test_a_stale_lease_cannot_report_output", (HELD, IN_TIME, "")),
    "first output stays": bug(
        "test_the_latest_output_replaces_the_previous_one",
        (KEEP_OUTPUT, "start = VALUES(start), text = VALUES(text)", "start = start"),
    ),
    "a verdict takes the output of crashes along": bug(
        "test_the_output_of_a_crashed_delivery_is_retained",
        (DELETE_LIVE_OUTPUT, " AND (seq, delivery) IN %(pairs)s", ""),
    ),
    "a look finds every lease held": bug(
        "test_lease_states_are_read_without_extending_a_lease", (LEASE_STATES, IN_TIME, "")
    ),
    "a look finds nothing cancelled": bug(
        "test_lease_states_are_read_without_extending_a_lease",
        (LEASE_STATES, "cancel_request IS NOT NULL", "0"),
    ),
    "expired cells read": bug("test_an_expired_cell_is_absent_before_it_is_swept", (state.READ_THESE, LIVE, "")),
    "expired cells listed": bug("test_an_expired_cell_is_absent_before_it_is_swept", (state.READ, LIVE, "")),
    "cells expire by the clock of the process": bug(
        "test_expiry_is_judged_by_the_engines_clock", (state.READ, CLOCK, PROCESS_TIME)
    ),
    "conditions by the clock of the process": bug(
        "test_expiry_is_judged_by_the_engines_clock", (state.LOCKED_CELLS, CLOCK, PROCESS_TIME)
    ),
    "cells of every kind": bug(
        "test_every_handle_reads_what_was_written", (state.READ, "kind = %(kind)s", "%(kind)s IS NOT NULL")
    ),
    "cells in the order of an alphabet": bug(
        "test_cells_are_read_in_the_order_of_their_keys_a_page_at_a_time",
        (state.READ, "ORDER BY name", "ORDER BY CONVERT(name USING utf8mb4) COLLATE utf8mb4_general_ci"),
    ),
    "versions start again": bug(
        "test_versions_grow_across_drop_expiry_and_sweep", (state.LOCKED_CELLS, "version, expires_at", "1, 1")
    ),
    "a put starts the versions again": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (state.PUT, f"GREATEST(LEAST(version, {NEVER - 1}) + 1, {CLOCK})", "1"),
    ),
    "swept while the version is ahead": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (state.EXPIRED_CELLS, " AND version < %(now)s", ""),
        (state.LOCK_EXPIRED_CELLS, " AND version < %(now)s", ""),
    ),
    "live cells swept": bug(
        "test_sweeping_deletes_only_what_has_expired",
        (state.EXPIRED_CELLS, "expires_at <= %(now)s AND ", ""),
        (state.LOCK_EXPIRED_CELLS, " AND expires_at <= %(now)s", ""),
    ),
    "busy buckets swept": bug(
        "test_sweeping_deletes_only_what_has_expired",
        (state.FULL_BUCKETS, "full_at <= %(now)s", "1"),
        (state.LOCK_FULL_BUCKETS, " AND full_at <= %(now)s", ""),
    ),
    "spent tokens forgotten": bug(
        "test_a_bucket_grants_its_burst_and_then_its_rate", (state.LOCKED_BUCKETS, "full_at,", "0,")
    ),
    "places counted without the lease": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (slots.PLACES, f" AND j.lease_until > {CLOCK}", ""),
    ),
    "promotion never ends": bug(
        "test_a_promotion_expires",
        (slots.PLACES, "p.until,", f"{CLOCK} + 1,"),
    ),
    "promotion ends though its job can still enter": bug(
        "test_jobs_that_no_worker_claims_for_long_are_claimed_at_most_twice",
        (slots.IS_TAKEN, "ELSE j.queue", f"ELSE p.until > {CLOCK} AND j.queue"),
    ),
    "promotion ends with the claim of its job": bug(
        "test_a_promoted_job_that_enters_late_does_not_lose_its_place",
        (slots.IS_TAKEN, "WHEN j.state = 2 THEN j.queue", f"WHEN j.state = 2 THEN p.until > {CLOCK} AND j.queue"),
    ),
    "promotion outlives the lease of its job": bug(
        "test_a_promoted_job_that_dies_before_it_enters_passes_the_slot_on",
        (slots.IS_TAKEN, f"THEN j.queue = p.queue AND j.lease_until > {CLOCK}", "THEN j.queue = p.queue"),
    ),
    "promotion of a job that is not due": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, f" AND j.due_at <= {CLOCK} END", " END"),
    ),
    "promotion in the queue that a job has left": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (slots.IS_TAKEN, "ELSE j.queue = p.queue AND", "ELSE"),
    ),
    "job returned unstarted loses its turn": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "WHERE", "WHERE 0 AND")
    ),
    "job returned unstarted has no promotion mark": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (slots.RESERVE, "until = %s", "until = 0 * %s")
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
        (slots.BEST, "size > %s", "size > 0 * %s"),
    ),
    "promotion does not count": bug(
        "test_a_newcomer_does_not_overtake_a_promoted_job", (slots.PLACES, "p.until,", "0,")
    ),
    "everyone leaves with the first": bug(
        "test_as_many_jobs_enter_as_the_slot_has_places", (slots.FREE, "IN %s", "IN %s OR p.slot LIKE 'key:%%'")
    ),
    "promoted in one queue only": bug(
        "test_a_paused_queue_does_not_keep_the_others_waiting",
        (slots.QUEUES, "GROUP BY slot, queue", "GROUP BY slot, queue ORDER BY queue DESC LIMIT 1"),
    ),
    "promoted although it is no longer blocked": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (slots.LOCK_BLOCKED, "state = 3", "1"),
    ),
    "promoted job stays among the blocked": bug(
        "test_leaving_promotes_the_next_job_in_the_same_commit", (slots.PROMOTE, f",{PLACE}", "")
    ),
    "blocked whatever the priority": bug("test_the_best_waiting_job_is_promoted", (slots.TURNS, "priority", "5")),
    "blocked job costs an attempt": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost",
        (slots.BLOCK, "owner_token = ''", "owner_token = '', attempts = attempts + 1"),
    ),
    "blocked job not known to be": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (inspector.VIEW_COLUMNS, " AND j.state = 3", ""),
    ),
    "cancelled job counted among those that wait": bug(
        "test_a_blocked_job_can_be_rescheduled", (inspector.COUNT_WAITERS, " AND j.state = 3", "")
    ),
    "stored size ignored": bug(
        "test_a_slot_of_size_0_admits_no_job_and_promotes_none", (slots.LOCKED_SLOTS, "size,", "NULL,")
    ),
    "closed slot admits": bug(
        "test_a_closed_slot_admits_no_job_before_its_time", (slots.LOCKED_SLOTS, "closed_until,", "0,")
    ),
    "closed slot never opens": bug(
        "test_a_slot_that_was_closed_admits_its_size_afterwards",
        (slots.NEGLECTED, f"s.closed_until <= {CLOCK}", "s.closed_until = 0"),
    ),
    "slot not opened if a promoted job waits": bug(
        "test_a_queue_that_nobody_works_on_does_not_keep_a_slot_closed",
        (slots.NEGLECTED, "s.closed_until > 0", "s.closed_until < 0"),
    ),
    "size forgotten by an entry": bug(
        "test_the_stored_size_counts_not_that_of_the_message",
        (slots.STORE_FENCES, "fence = VALUES(fence)", "fence = VALUES(fence), size = NULL"),
    ),
    "size deleted with an unused slot": bug(
        "test_an_unused_slot_keeps_its_size_and_its_closing_time",
        (inspector.IDLE_SLOTS, " AND s.size IS NULL", ""),
        (inspector.STILL_IDLE_SLOTS, " AND s.size IS NULL", ""),
    ),
    "fences start again": bug("test_fences_grow_from_holder_to_holder", (slots.LOCKED_SLOTS, "fence,", "0,")),
    "repair overlooks dead holders": bug(
        "test_repair_finishes_what_a_reaper_left_undone", (slots.NEGLECTED, "AND NOT COALESCE", "AND 0 * COALESCE")
    ),
    "repair overlooks slots without a place": bug(
        "test_a_promoted_job_that_was_cancelled_passes_the_slot_on",
        (slots.NEGLECTED, "OR EXISTS", "AND EXISTS"),
    ),
    "expired marks spare": bug("test_expired_marks_spare_nothing", (state.READ_THESE, LIVE, "")),
    "key free while its job waits": bug(
        "test_a_second_job_with_the_key_is_not_stored", (slots.STORE_KEYS, "id = VALUES(id)", "id = id")
    ),
    "key held for its period only if the job is known": bug(
        "test_a_period_ends_by_the_clock_alone",
        (inspector.UNUSED_KEYS, "u.until <= %(now)s AND ", ""),
        (inspector.STILL_UNUSED_KEYS, "u.until <= %(now)s AND ", ""),
    ),
    "keys of open jobs deleted": bug(
        "test_unused_keys_are_deleted",
        (inspector.UNUSED_KEYS, "j.state >= 4", "1"),
        (inspector.STILL_UNUSED_KEYS, "j.state >= 4", "1"),
    ),
    "running job rescheduled": bug(
        "test_a_job_that_has_started_is_not_rescheduled",
        (slots.JOBS_OF, "seq, state,", "seq, 0,"),
        (slots.LOCK_JOBS, "seq, state", "seq, 0"),
    ),
    "rescheduled job stays in its place": bug(
        "test_a_rescheduled_job_gets_its_new_message_and_time", (RESCHEDULE, f",{PLACE}", "")
    ),
    "child not blocked": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (INSERT_WITH_CHILDREN, "%s, %s)", "%s, 0 * %s)")
    ),
    "time of a blocked child not shown": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed",
        (inspector.VIEW_COLUMNS, "THEN j.accepted_at", "THEN NULL"),
    ),
    "end of a parent not noted": bug(
        "test_a_child_waits_for_all_of_its_parents", (edges.UNMET, "WHERE parent", "WHERE 0 AND parent")
    ),
    "end of a parent not noted by an exchange": bug(
        "test_a_settlement_releases_the_children_in_the_same_call",
        (LOOK_AND_FIND_PARENTS, "WHERE parent", "WHERE 0 AND parent"),
    ),
    "notes not resolved by repair": bug(
        "test_no_call_changes_more_than_a_thousand_children",
        (slots.UNDONE, "FROM holdfast_notes", "FROM holdfast_notes WHERE 0"),
    ),
    "parent cancelled by an operator not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (inspector.LOCK_JOB, "SELECT seq", "SELECT -seq")
    ),
    "edges deleted with the parent": bug(
        "test_a_deleted_parent_counts_as_failed", (inspector.DELETE_EDGES, "e.child", "e.parent")
    ),
    "children decided without their lock": bug(
        "test_parents_that_complete_at_once_release_the_child_once",
        (edges.LOCK_CHILDREN, " FOR UPDATE", ""),
        (edges.NOTES, "ORDER BY n.id LIMIT %s", "AND %s ORDER BY n.id LIMIT 1"),
        SLOW_EDGES,
    ),
    "released child still blocked": bug(
        "test_a_settlement_releases_the_children_in_the_same_call", (edges.RELEASE, "WHERE seq", "WHERE 0 AND seq")
    ),
    "released child not in its lane": bug(
        "test_a_settlement_releases_the_children_in_the_same_call", (edges.RELEASE, f",{PLACE}", "")
    ),
    "cancelled child without its reason": bug(
        "test_every_end_of_a_parent_is_noticed", (edges.CANCEL, "'parent-failed'", "''")
    ),
    "policy of an edge ignored": bug(
        "test_a_parent_that_has_ended_counts_at_once", (edges.EDGES, "policy = %s", "%s IS NOT NULL")
    ),
    "children of a replayed parent not revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.REOPEN, "WHERE seq", "WHERE 0 AND seq"),
    ),
    "child cancelled by an operator revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (edges.LOCK_CHILDREN, "COALESCE(cancel_reason = 'parent-failed', 0)", "1"),
        (edges.REOPEN, " AND cancel_reason = 'parent-failed'", ""),
    ),
    "replayed child does not wait for its other parents": bug(
        "test_a_replayed_child_runs_although_its_parent_failed", (edges.BLOCK_AGAIN, "SET state = 3", "SET state = 0")
    ),
    "replayed child still waits for the parent that failed": bug(
        "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed",
        (edges.UNMET_PARENTS, "outcome IN (0, 2)", "outcome = 0"),
    ),
    "child released by its replacement": bug(
        "test_a_rescheduled_child_still_waits", (edges.PARENT_OUTCOMES, "child, outcome", "child, 1")
    ),
    "parent of an unfinished child pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (inspector.LOCK_FINISHED, "NOT (%(spares_parents)s", "NOT (0 * %(spares_parents)s"),
    ),
    "parents counted that no longer hold up the job": bug(
        "test_relatives_are_listed", (inspector.NUMBER_OF_RELATIVES, " AND e.outcome = 0", "")
    ),
}


class WritesUpToTheFailedCondition(MysqlState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        versions: list[int] = []
        for one in writes:
            applied = super().write([one])
            if applied is None:
                return None
            versions += applied
        return versions


class ConditionDropped(MysqlState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        return super().write([replace(write, if_version=None) for write in writes])


class WrittenOutsideOfATransaction(MysqlState):
    """Each statement commits, and releases the lock."""

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        try:
            return self._connections.run(lambda session: write_cells(session, self._connections.sql, parted(writes)[0]))
        except StateConflict:
            return None


class SpentOutsideOfATransaction(MysqlState):
    """Each statement commits, and releases the lock."""

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return self._connections.run(lambda session: self._spend(session, spends))


class RefundWithoutLimit(MysqlState):
    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return [
            Spent(tokens=one.tokens, wait_s=0.0) if one.tokens > one.burst else spent
            for one, spent in zip(spends, super().spend(spends), strict=True)
        ]


class WritesOfTheWholeBatch(MysqlEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        self.state.write([write for one in settlements for write in one.writes])
        return answers


class WritesOfARepetition(MysqlEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        self.state.write(
            [write for one, answer in zip(settlements, answers, strict=True) if answer for write in one.writes]
        )
        return answers


class EnqueuesOfARefusal(MysqlEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for one, answer in zip(settlements, answers, strict=True):
            if not answer:
                self.accept(one.enqueues)
        return answers


class NeighboursOfABadOneSettled(MysqlEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return [answer for one in settlements for answer in super(NeighboursOfABadOneSettled, self).settle([one])]


class JobsAcceptedWithoutTheirWrites(MysqlEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        accepted = super().accept(envelopes, tx)
        if self.state.write(writes) is None:
            raise StateConflict("too late")
        return accepted


class EnteredOutsideOfATransaction(MysqlEngine):
    """Each statement commits, and releases the lock of the slot."""

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        def enter(session: Session) -> list[Entered]:
            return LockedSlots(MysqlSlots(session, self.connections), slot_names(entries)).enter(entries)

        return self.connections.run(enter) if entries else []


class LooksBeforeItLocks(MysqlEngine):
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        def enter(session: Session) -> list[Entered]:
            return LockedSlots(EarlySlots(session, self.connections), slot_names(entries)).enter(entries)

        return self.connections.transact(enter) if entries else []


class EarlySlots(MysqlSlots):
    """Reads the places before the slots are locked."""

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        self._seen = super().places(names)
        return super().lock(names)

    def places(self, names: Sequence[str]) -> list[Place]:
        return self._seen


class LeavesOfARefusal(MysqlEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)

        def leave(session: Session) -> int:
            return LockedSlots(MysqlSlots(session, self.connections), left_slots(settlements)).leave(settlements)

        self.connections.transact(leave)
        return answers


class LeavesBySlotName(LeavesOfARefusal):
    """A late settlement frees the places of the jobs that entered since."""


class UniqueOutsideOfATransaction(MysqlEngine):
    """Each statement commits, and releases the lock of the key."""

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        duplicates = self.connections.run(
            lambda session: find_duplicates(envelopes, MysqlUniques(session, self.connections))
        )
        others = [replace(one, unique=None) for one in envelopes if one.id not in duplicates]
        stored = {one.id: one for one in super().accept(others)}
        return [stored.get(one.id) or Accepted(id=duplicates[one.id], created=False) for one in envelopes]


class ReapsWithoutNotes(MysqlJobs):
    _is_reaping = False

    def _reap(self, session: Session, found: Sequence[Row]) -> tuple[int, bool]:
        self._is_reaping = True
        try:
            return super()._reap(session, found)
        finally:
            self._is_reaping = False

    def _sql(self, statement: str) -> str:
        return super()._sql(f"{statement} LIMIT 0" if self._is_reaping and statement == edges.UNMET else statement)


class EntersWithoutNotes(MysqlJobs):
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        def enter(session: Session) -> list[Entered]:
            return LockedSlots(BlocksWithoutNotes(session, self._connections), slot_names(entries)).enter(entries)

        return self._connections.transact(enter)


class BlocksWithoutNotes(MysqlSlots):
    """Leaves no note on a job that is cancelled instead of blocked."""

    def _sql(self, statement: str) -> str:
        return super()._sql(f"{statement} LIMIT 0" if statement == edges.UNMET else statement)


class LooksForChildrenBeforeItSettles(MysqlJobs):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        def settle(session: Session) -> list[bool]:
            seqs = [int(one.lease.token) for one in settlements]
            parents = [seq for (seq,) in session.rows(self._sql(edges.UNMET), (seqs,))]
            session.row(f"SELECT {LONGEST_DELAY}")
            answers = self._settle(session, settlements, session.now(), set())
            edges.note_parents(session, self._sql, parents)
            return answers

        return self._connections.transact(settle)


class TransactionCompletedWithoutWrites(MysqlEngine):
    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        return Forgetful(super().transaction(job_id, delivery))


class Forgetful(EngineTransaction):
    """Completes a job, but drops the writes and jobs it carries."""

    def __init__(self, whole: EngineTransaction) -> None:
        self._whole = whole

    def complete(
        self,
        record: AttemptRecord,
        *,
        leaves: Sequence[str] = (),
        writes: Sequence[Write] = (),
        enqueues: Sequence[JobEnvelope] = (),
    ) -> None:
        self._whole.complete(record)

    def roll_back(self) -> None:
        self._whole.roll_back()


BROKEN: dict[type[MysqlEngine | MysqlJobs | MysqlState], Bug] = {
    WritesUpToTheFailedCondition: bug("test_a_failed_condition_refuses_all_writes"),
    ConditionDropped: bug("test_a_failed_condition_refuses_all_writes"),
    WrittenOutsideOfATransaction: bug(
        "test_of_many_writers_of_one_version_one_wins", (state.LOCKED_CELLS, "version,", f"version + {DELAY},")
    ),
    SpentOutsideOfATransaction: bug(
        "test_concurrent_spenders_share_the_burst",
        (state.LOCKED_BUCKETS, "full_at,", f"full_at + {DELAY},"),
    ),
    RefundWithoutLimit: bug("test_a_refund_never_fills_a_bucket_above_its_burst"),
    WritesOfTheWholeBatch: bug("test_a_refused_settlement_carries_nothing"),
    WritesOfARepetition: bug("test_a_repeated_settlement_carries_nothing_twice"),
    EnqueuesOfARefusal: bug("test_a_refused_settlement_carries_nothing"),
    NeighboursOfABadOneSettled: bug(
        "test_a_settlement_that_cannot_be_written_changes_nothing_and_others_can_be_settled"
    ),
    JobsAcceptedWithoutTheirWrites: bug("test_jobs_are_accepted_with_writes_or_not_at_all"),
    EnteredOutsideOfATransaction: bug(
        "test_racing_jobs_never_exceed_the_places", (slots.TAKE, "%s)", f"%s + {LONG_DELAY})")
    ),
    LooksBeforeItLocks: bug(
        "test_racing_jobs_never_exceed_the_places", (slots.LOCKED_SLOTS, "fence,", f"fence + {DELAY},")
    ),
    LeavesOfARefusal: bug("test_a_refused_settlement_leaves_nothing"),
    LeavesBySlotName: bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (slots.FREE, "IN %s", "IN %s OR p.slot LIKE 'key:%%'"),
    ),
    UniqueOutsideOfATransaction: bug(
        "test_of_racing_callers_one_stores_its_job", (slots.LOCKED_KEYS, "until", f"until + {DELAY}")
    ),
    ReapsWithoutNotes: bug("test_every_end_of_a_parent_is_noticed"),
    EntersWithoutNotes: bug("test_every_end_of_a_parent_is_noticed"),
    LooksForChildrenBeforeItSettles: bug("test_a_child_accepted_while_its_parent_ends_runs", SLOW_CHILDREN),
    TransactionCompletedWithoutWrites: bug("test_a_transaction_applies_writes_and_enqueues"),
}
"""An engine with a bug in Python; the edits of its statements make a race certain."""


def planted(edits: Iterable[Edit], broken: type[MysqlEngine | MysqlJobs | MysqlState]) -> Callable[..., MysqlEngine]:
    """A function that opens an engine with these edits."""
    planting = Planting(edits)

    def opened(url: str, envelopes: EnvelopeFactory, *, policy: LeasePolicy, clock: Clock) -> MysqlEngine:
        made = broken if issubclass(broken, MysqlEngine) else MysqlEngine
        engine = made(url, envelopes, policy=policy, clock=clock)
        sql = engine.connections.sql
        engine.connections.sql = lambda statement: sql(planting.edited(statement, clock))
        if issubclass(broken, MysqlState):
            engine.state = broken(engine.connections)
        if issubclass(broken, MysqlJobs):
            engine.jobs = broken(engine.connections, MysqlClaims(engine.connections, policy), policy, clock)
        return engine

    return opened


@contextmanager
def lab_of(bug: Bug, broken: type[MysqlEngine | MysqlJobs | MysqlState] = MysqlEngine) -> Generator[Lab]:
    with mysql_lab(planted(bug.edits, broken), options=bug.options) as lab:
        yield lab


HEALTHY = partial(lab_of, bug(""))
PLANTS = {name: Plant(bug.breaks, partial(lab_of, bug)) for name, bug in BUGS.items()} | {
    broken.__name__: Plant(bug.breaks, partial(lab_of, bug, broken)) for broken, bug in BROKEN.items()
}
