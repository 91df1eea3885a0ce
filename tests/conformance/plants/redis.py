"""Bugs for the Redis engine: scripts that lack a condition, leave a job in two indexes, or let it expire."""

import hashlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from importlib import resources
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.contract import DEFAULT_POLICY, LeasePolicy
from holdfast.queues.engines.redis.connections import Script
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab

from ..labs import redis_lab
from .planting import PROCESS_TIME, Bug, Edit, Plant, Planting, bug


def part(name: str) -> str:
    """The text of one part of the scripts."""
    return resources.files("holdfast.queues.engines").joinpath(f"redis/lua/{name}.lua").read_text(encoding="utf-8")


ACCEPT = part("accept")
ACCEPT_UNIQUE = part("accept_unique")
ACCEPTING = part("accepting")
BURY = part("bury")
CANCEL = part("cancel")
CARRY_AND_EXCHANGE = part("carry_and_exchange")
CARRYING = part("carrying")
CELLS = part("cells")
CLAIM = part("claim")
COMMON = part("common")
COUNTS = part("counts")
DELETE_UNUSED = part("delete_unused")
DROP_TOMBSTONES = part("drop_tombstones")
EDGES = part("edges")
ENDING = part("ending")
ENTER = part("enter")
EXCHANGE = part("exchange")
EXPIRE = part("expire")
FORGETTING = part("forgetting")
LEASES = part("leases")
LIST_SLOTS = part("list_slots")
LOOK = part("look")
OLDEST_DUE = part("oldest_due")
PROMOTE = part("promote")
READ = part("read")
REAP = part("reap")
RELATIVES = part("relatives")
RENEW = part("renew")
RESIZE = part("resize")
REPLAY = part("replay")
REPORT = part("report")
RESCHEDULE = part("reschedule")
SETTLE = part("settle")
SETTLE_ONLY = part("settle_only")
SIFT = part("sift")
SLOTS = part("slots")
SPEND = part("spend")
SWEEP = part("sweep")
UNIQUES = part("uniques")
VIEW = part("view")
WRITE = part("write")

HOLDER = "owner ~= token or "
IN_TIME = "(lease_until or 0) > now and lease_until"
IS_HELD = "held_until(token, record[1])"
IS_PROCESSING = "state_of(record[1]) == PROCESSING"
NOT_FOR_OTHERS = " and (place.owner_token or (not is_promoted and is_recent(place)))"
STILL_BLOCKED = "state_of(record[1]) == BLOCKED and (blocked_on(record[1]) or one.slot) == one.slot"
IF_UNKNOWN = "if #open > 0 then\n  return { open }\nend\n"
IF_CANCELLED = "  if edges.has(child, EDGE_CANCELLED) then\n"
UNNOTED = "has_watched = false\n"
"""Lua code after which a script leaves no notes."""
STORE_FENCE = "    write('ZADD', 'slots', { digits(one.fence), one.slot })\n"

BUGS: dict[str, Bug] = {
    "takeover robs every worker": bug(
        "test_leases_of_other_sessions_stay", (EXPIRE, "theirs[string.sub(token, 1, 8)]", "true")
    ),
    "takeover robs sessions that begin alike": bug(
        "test_leases_of_other_sessions_stay",
        (EXPIRE, "theirs[session]", "theirs[string.sub(session, 1, 7)]"),
        (EXPIRE, "theirs[string.sub(token, 1, 8)]", "theirs[string.sub(token, 1, 7)]"),
    ),
    "takeover counts leases that have expired": bug(
        "test_a_lease_expires_only_once", (EXPIRE, "if job[3] > now then", "if true then")
    ),
    "takeover forgets renewed leases": bug(
        "test_a_renewed_lease_of_a_dead_session_expires",
        (EXPIRE, "if job[3] > now then", "if not call('ZSCORE', base .. 'renewed:' .. queue, job[1]) then"),
    ),
    "ack without token check": bug(
        "test_a_lease_of_one_job_cannot_settle_another",
        (SETTLE, "held_until(token, field, delivery)", "state_of(field) == PROCESSING"),
    ),
    "verdict without token check": bug("test_a_lease_of_one_job_cannot_settle_another", (ENDING, HOLDER, "")),
    "ack accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
        (SETTLE, "held_until(token, field, delivery)", "string.sub(field or '', -16) == token"),
    ),
    "verdict accepted after the lease ended": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped", (ENDING, IN_TIME, "lease_until")
    ),
    "lease one microsecond too long": bug(
        "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
        (ENDING, IN_TIME, IN_TIME.replace(">", ">=")),
    ),
    "lease compared the wrong way round": bug(
        "test_a_lease_can_settle_until_its_last_moment", (ENDING, IN_TIME, IN_TIME.replace(">", "<"))
    ),
    "settled job stays held": bug(
        "test_a_settled_lease_is_lost",
        (SETTLE, "'state', completed ..", "'was', completed .."),
        (SETTLE, "    let_go(token, queue, leaving)\n", ""),
    ),
    "claim outlives the reaper": bug(
        "test_every_job_of_a_lost_claim_is_requeued", (ENDING, "  let_go(token, queue, { id })\n", "")
    ),
    "renewal revives an ended lease": bug(
        "test_an_expired_lease_is_never_revived",
        (RENEW, IS_HELD, f"{IS_PROCESSING} and string.sub(record[1], -16) == token"),
    ),
    "renewal without token check": bug(
        "test_a_forged_lease_is_lost",
        (RENEW, IS_HELD, IS_PROCESSING),
        (RENEW, "length_of(fields(claim, 'length')[1]) or 0", "60000000"),
    ),
    "renewal moves nothing": bug(
        "test_a_renewed_lease_expires_a_full_length_from_now",
        (RENEW, "    renew(id, record[1], record[2], now + lengths[claim])\n", ""),
    ),
    "renewed job leaves the index with its claim": bug(
        "test_a_renewed_lease_expires_a_full_length_from_now",
        (REAP, "job[3] > now then", "false then"),
    ),
    "renewal by a length of its own": bug(
        "test_a_renewal_does_not_change_the_length_of_a_lease", (RENEW, "now + lengths[claim]", "now + 60000000")
    ),
    "reaper takes living leases": bug(
        "test_the_reaper_does_not_touch_unexpired_leases",
        (REAP, "job[3] > now then", "false then"),
        (REAP, "queue, '-inf', now)", "queue, '-inf', '+inf')"),
    ),
    "reaper reaps every queue": bug(
        "test_the_reaper_reaps_one_queue_or_all", (REAP, "#ARGV > 4 and { ARGV[5] } or ", "")
    ),
    "reaper leaves no history": bug(
        "test_a_delivery_without_a_verdict_is_in_the_history", (REAP, ", 'end:' .. deliveries, ended }", " }")
    ),
    "reaper records the wrong start of the run": bug(
        "test_a_delivery_without_a_verdict_lasted_from_its_claim_until_it_was_reaped",
        (REAP, "'-crashed ' .. digits(claimed_at)", "'-crashed ' .. at_once"),
    ),
    "crash not counted": bug(
        "test_a_reaped_job_is_pending_with_one_crash_and_no_attempt",
        (REAP, "count(record[2]) + 1", "count(record[2]) + 0"),
    ),
    "crash limit off by one": bug(
        "test_a_job_is_dead_at_the_crash_limit_and_never_delivered_again",
        (REAP, "crashes >= crash_limit", "crashes > crash_limit"),
    ),
    "marked crash ignores the limit": bug(
        "test_releases_marked_crashed_count_like_any_crash",
        (SETTLE, "crashes >= tonumber(crash_limit)", "crashes >= 1000 + crash_limit"),
    ),
    "crashes not reset by a verdict": bug(
        "test_a_verdict_resets_the_crashes", (SETTLE, "crashing == 'reset' and 0 or ", "")
    ),
    "crashes of a completed job shown": bug(
        "test_a_verdict_resets_the_crashes", (VIEW, "if state == COMPLETED then", "if false then")
    ),
    "crashes reset by handing back": bug(
        "test_releasing_an_unstarted_job_does_not_change_its_crashes",
        (SETTLE, "crashing == 'reset' and 0", "crashing ~= 'add' and 0"),
    ),
    "suspect claimed with others": bug(
        "test_a_suspect_at_the_head_of_the_queue_comes_alone",
        (CLAIM, "is_full = count(record[3]) > 0", "is_full = count(record[3]) > 99"),
    ),
    "due time ignored": bug(
        "test_a_job_is_never_delivered_early", (CLAIM, "'-inf', now, 'LIMIT'", "'-inf', '+inf', 'LIMIT'")
    ),
    "delivered late": bug(
        "test_a_job_is_never_delivered_early", (CLAIM, "'-inf', now, 'LIMIT'", "'-inf', '(' .. at_once, 'LIMIT'")
    ),
    "order of a batch lost": bug(
        "test_a_batch_is_claimed_in_the_order_it_was_accepted",
        (ACCEPTING, "immediate = immediate + 1", "immediate = now"),
    ),
    "priorities the wrong way round": bug(
        "test_higher_priorities_come_first", (CLAIM, "for priority = 9, 0, -1 do", "for priority = 0, 9 do")
    ),
    "limit not applied": bug("test_a_claim_returns_at_most_its_limit", (CLAIM, "limit - #ids)", "1000)")),
    "limit for each priority": bug("test_a_small_claim_returns_the_first_in_order", (CLAIM, "limit - #ids)", "limit)")),
    "claimed job stays ready": bug(
        "test_a_claimed_job_is_not_claimed_by_another_worker",
        (CLAIM, "      call('ZREMRANGEBYRANK', base .. 'ready:' .. queue .. ':' .. priority, 0, number - 1)\n", ""),
    ),
    "claim needs a hint": bug(
        "test_a_job_is_never_delivered_early",
        (
            CLAIM,
            "  return stamp(",
            "  if not call('LPOP', base .. 'wake:' .. queue) then\n    return {}\n  end\n  return stamp(",
        ),
    ),
    "repeated claim stamps new jobs": bug(
        "test_a_repeated_claim_returns_what_it_stamped",
        (CLAIM, "if known[1] then", "if false then"),
    ),
    "repeated claim of any queue": bug(
        "test_the_same_token_on_another_queue_is_another_claim",
        (CLAIM, "'claim:' .. token .. ':' .. queue", "'claim:' .. token"),
    ),
    "repeated claim fences late": bug(
        "test_a_repeated_claim_does_not_fence_after_its_lease_expires",
        (CLAIM, "math.min(lease_until - now, length)", "length"),
    ),
    "pause ignored": bug(
        "test_a_paused_queue_returns_nothing_and_others_are_not_affected",
        (CLAIM, " or call('HEXISTS', base .. 'pauses', queue) == 1", ""),
    ),
    "delivery not counted": bug(
        "test_a_delivery_is_counted_once_per_claim",
        (CLAIM, "record[1] = count(record[1] and select(2, read_state(record[1]))) + 1", "record[1] = 1"),
    ),
    "delivered before, and taken for new": bug(
        "test_attempts_count_failed_runs_only", (ENDING, "  write('SADD', 'again:' .. queue, { id })\n", "")
    ),
    "attempt lost on nack": bug(
        "test_a_nack_costs_an_attempt_and_waits_for_its_retry", (SETTLE, "+ adds_attempt", "+ 0")
    ),
    "attempt counted on release": bug("test_a_release_costs_no_attempt", (SETTLE, "+ adds_attempt", "+ 1")),
    "delay forgotten on nack": bug("test_a_retry_is_never_delivered_early", (SETTLE, "now + delay", "now")),
    "dead reason lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (SETTLE, "'dead_reason', reason", "'dead_reason', ''")
    ),
    "last error lost": bug(
        "test_an_abandoned_job_is_dead_with_its_reason", (SETTLE, "if line ~= '' then", "if false then")
    ),
    "expiry of a job not kept": bug(
        "test_an_expired_job_is_replayed_only_if_its_expiry_is_ignored",
        (SETTLE, "'expired', expired", "'expired', '0'"),
    ),
    "attempt of an ack not kept": bug(
        "test_each_job_of_a_large_batch_gets_its_own_attempt",
        (SETTLE, "16 * number - 15, 16 * number", "1, 16"),
    ),
    "result and output dropped": bug(
        "test_an_ack_completes_the_job", (SETTLE, "if told[number] then", "if false then")
    ),
    "settled job stays leased": bug(
        "test_every_job_is_counted_in_one_state", (ENDING, "  let_go(token, queue, { id })\n", "")
    ),
    "completed job stays leased": bug(
        "test_every_job_is_counted_in_one_state", (SETTLE, "    let_go(token, queue, leaving)\n", "")
    ),
    "cancel request lost on retry": bug(
        "test_a_job_with_a_cancellation_request_is_not_retried",
        (SETTLE, "changes, request, is_crash_loop", "changes, nil, is_crash_loop"),
    ),
    "cancel request lost by the reaper": bug(
        "test_a_job_with_a_cancellation_request_is_cancelled_when_it_is_reaped",
        (REAP, "changes, record[3], crashes", "changes, nil, crashes"),
    ),
    "cancel request seen once": bug(
        "test_a_running_job_receives_a_cancellation_request",
        (
            RENEW,
            "record[3] and 2 or 1\n",
            "record[3] and 2 or 1\n    call('HDEL', base .. 'job:' .. id, 'cancel_request')\n",
        ),
    ),
    "cancel request outlives a replay": bug(
        "test_a_replay_clears_the_cancellation_request",
        (ENDING, "    try('HDEL', base .. 'job:' .. id, 'cancel_request')\n", ""),
    ),
    "cancelled job stays ready": bug(
        "test_a_waiting_job_is_cancelled_at_once",
        (CANCEL, "call('ZREM', base .. 'ready:' .. queue .. ':' .. priority, id)\n", ""),
    ),
    "cancelled job stays among the failed": bug(
        "test_a_waiting_job_is_cancelled_at_once", (CANCEL, "call('ZREM', base .. 'failed:' .. queue, id)\n", "")
    ),
    "repeated settlement refused": bug(
        "test_a_repeated_settlement_answers_true_and_changes_nothing", (SETTLE, "return known and", "return false and")
    ),
    "other verdict taken for a repetition": bug(
        "test_another_verdict_with_the_same_token_is_refused", (SETTLE, ", 1, 17)", ", 1, 16)")
    ),
    "clock set back reaps": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (REAP, "queue, now + length)", "queue, now)"),
    ),
    "clock set back holds for ever": bug(
        "test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped",
        (REAP, "if shortest then", "if false then"),
    ),
    "clock of the process asked": bug(
        "test_the_clock_of_a_worker_decides_nothing", (COMMON, "time[1] * 1000000 + time[2]", PROCESS_TIME)
    ),
    "same id overwrites": bug(
        "test_the_same_id_with_other_content_is_refused",
        (ACCEPTING, "elseif is_there and compared[job] ~= (record[2] or '') then", "elseif false then"),
    ),
    "half a batch kept": bug(
        "test_a_refused_job_refuses_its_whole_batch",
        (
            ACCEPT,
            "if #open > 0 then\n  return { open }\nend\n",
            "for _, one in ipairs(open) do\n  known[ARGV[place_of(one[1])]] = true\nend\n",
        ),
    ),
    "tombstone not looked at": bug(
        "test_a_discarded_id_is_known_for_an_hour_and_then_free",
        (ACCEPTING, " and (tonumber(record[3] or 0) or 0) <= now", ""),
    ),
    "tombstone free too soon": bug(
        "test_a_purged_id_is_known_for_an_hour_and_then_free", (BURY, "now + hour", "now + hour / 2")
    ),
    "tombstone swept away": bug(
        "test_a_discarded_id_is_known_for_an_hour_and_then_free",
        (DROP_TOMBSTONES, "'stones', '-inf', now", "'stones', '-inf', '+inf'"),
    ),
    "freed id remembers what was told": bug(
        "test_a_new_job_under_a_freed_id_inherits_nothing", (FORGETTING, ", base .. 'told:' .. id,", ",")
    ),
    "record expires": bug(
        "test_unfinished_jobs_are_never_pruned",
        (ACCEPTING, "'due_at', due)\n", "'due_at', due)\n    call('EXPIRE', base .. 'job:' .. id, 86400)\n"),
    ),
    "message expires": bug(
        "test_a_dead_letter_has_its_whole_history",
        (
            ACCEPTING,
            "    call('MSET', unpack(wires, first, math.min(first + 999, #wires)))\n",
            "    call('MSET', unpack(wires, first, math.min(first + 999, #wires)))\n"
            "for place = 1, #wires, 2 do\n  call('EXPIRE', wires[place], 86400)\nend\n",
        ),
    ),
    "pruned job counted on": bug(
        "test_completed_jobs_are_retained_as_long_as_the_policy_says",
        (FORGETTING, "  count_completed(queue, -left)\n", ""),
    ),
    "purged job stays among the completed": bug(
        "test_a_purged_job_is_not_deleted_again_with_the_next_job_of_its_id",
        (FORGETTING, "call('ZREM', completed, member)", "0"),
        (SIFT, "elseif state_of(record[1]) ~= state then", "elseif false then"),
    ),
    "discarded job stays among those completed with it": bug(
        "test_a_job_that_completed_in_a_batch_can_be_discarded_alone",
        (FORGETTING, "call('ZREM', completed, member)", "0"),
    ),
    "any job discarded": bug("test_only_dead_letters_are_discarded", (BURY, "state_of(record[1]) == state and ", "")),
    "purge ignores age": bug("test_a_purge_leaves_jobs_that_finished_recently", (SIFT, "age and now - age or ", "")),
    "purge of every queue": bug(
        "test_a_purge_deletes_only_jobs_of_its_queue", (SIFT, "queue ~= '' and { queue } or ", "")
    ),
    "replay keeps attempts": bug(
        "test_a_replayed_dead_letter_starts_a_new_life_with_its_history",
        (REPLAY, "{ 'attempts', 0, ", "{ 'crashes', 0, "),
    ),
    "replay keeps crashes": bug("test_a_replayed_job_is_not_a_suspect", (REPLAY, "'crashes', 0 }", "'attempts', 0 }")),
    "replay of a completed job": bug(
        "test_only_dead_and_cancelled_jobs_are_replayed",
        (REPLAY, "state ~= DEAD and", "state ~= DEAD and state ~= COMPLETED and"),
    ),
    "replay forgets to ignore the expiry": bug(
        "test_a_dead_letter_can_be_replayed_with_its_expiry_ignored", (REPLAY, "if ignore_expiry then", "if false then")
    ),
    "replayed job stays among the dead": bug(
        "test_a_paused_queue_accepts_jobs_and_operators_commands",
        (REPLAY, "call('ZREM', base .. FINISHED[state] .. queue, id)\n", ""),
    ),
    "scheduled counted as pending": bug(
        "test_every_job_is_counted_in_one_state",
        (COUNTS, "call('ZCOUNT', ready, '-inf', now)", "call('ZCARD', ready)"),
        (COUNTS, "scheduled + call('ZCOUNT', ready, after, '+inf')", "scheduled"),
    ),
    "wait of the most urgent job only": bug(
        "test_the_longest_wait_of_each_queue_is_known", (OLDEST_DUE, "priority = 0, 9", "priority = 9, 9")
    ),
    "wait of the latest job": bug(
        "test_the_longest_wait_of_each_queue_is_known", (OLDEST_DUE, "0, 0, 'WITHSCORES'", "-1, -1, 'WITHSCORES'")
    ),
    "wait looks at one queue": bug(
        "test_a_job_in_any_of_the_queues_ends_the_wait", (LOOK, "ipairs(ARGV)", "ipairs({ ARGV[1] })")
    ),
    "wait spins while paused": bug(
        "test_a_job_that_cannot_be_claimed_does_not_end_a_wait",
        (LOOK, "call('HEXISTS', base .. 'pauses', queue) == 0", "true"),
    ),
    "progress without token check": bug(
        "test_a_stale_lease_cannot_report_progress",
        (REPORT, "held_until(token, field)", "state_of(field) == PROCESSING"),
    ),
    "progress of the first delivery": bug(
        "test_a_crash_loop_shows_the_progress_of_its_last_delivery",
        (REPORT, "'progress_of', deliveries", "'progress_of', 1"),
    ),
    "output without token check": bug(
        "test_a_stale_lease_cannot_report_output", (REPORT, "held_until(token, field)", "state_of(field) == PROCESSING")
    ),
    "output of the first delivery": bug(
        "test_the_output_of_a_crashed_delivery_is_retained", (REPORT, "'output:' .. deliveries", "'output:1'")
    ),
    "first output stays": bug(
        "test_the_latest_output_replaces_the_previous_one",
        (REPORT, "write('HSET', 'told:' .. id, { 'output:'", "write('HSETNX', 'told:' .. id, { 'output:'"),
    ),
    "an error takes the place of the output": bug(
        "test_reported_output_remains_if_the_verdict_has_none",
        (SETTLE, "string.sub(details, 1, 1) == '+'", "true"),
    ),
    "a look finds every lease held": bug(
        "test_lease_states_are_read_without_extending_a_lease",
        (LEASES, "held_until(ARGV[at + 1], record[1])", "record[1]"),
    ),
    "a look finds nothing cancelled": bug(
        "test_lease_states_are_read_without_extending_a_lease", (LEASES, "record[2] and 2 or 1", "1")
    ),
    "writes before a failed condition stored": bug(
        "test_a_failed_condition_refuses_all_writes",
        (CELLS, "wanted ~= current then\n      return nil\n", "wanted ~= current then\n      return nil, cells\n"),
        (WRITE, "  return false\n", "  store(cells)\n  return false\n"),
    ),
    "condition dropped": bug(
        "test_of_many_writers_of_one_version_one_wins", (CELLS, "wanted and wanted ~= current", "false")
    ),
    "absence not checked": bug(
        "test_of_many_writers_of_one_version_one_wins",
        (CELLS, "wanted and wanted ~= current", "wanted and wanted > 0 and wanted ~= current"),
    ),
    "versions start at one": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (CELLS, "math.max((cell.version or 0) + 1, now)", "(cell.version or 0) + 1"),
    ),
    "version ahead of the clock swept": bug(
        "test_versions_grow_across_drop_expiry_and_sweep",
        (CELLS, "math.max(cell.expires, cell.version + 1)", "cell.expires"),
    ),
    "expired cell read": bug("test_an_expired_cell_is_absent_before_it_is_swept", (CELLS, "expires > now", "true")),
    "expiry by the clock of the process": bug(
        "test_expiry_is_judged_by_the_engines_clock", (CELLS, "expires > now", f"expires > {PROCESS_TIME}")
    ),
    "page begins with the key before it": bug(
        "test_cells_are_read_in_the_order_of_their_keys_a_page_at_a_time", (READ, "'(' .. ARGV[2]", "'[' .. ARGV[2]")
    ),
    "living cells swept": bug(
        "test_sweeping_deletes_only_what_has_expired",
        (SWEEP, "'expiries', '-inf', now", "'expiries', '-inf', '+inf'"),
    ),
    "buckets in use swept": bug(
        "test_sweeping_deletes_only_what_has_expired",
        (SWEEP, "'buckets', '-inf', now", "'buckets', '-inf', '+inf'"),
    ),
    "spent tokens not stored": bug(
        "test_concurrent_spenders_share_the_burst", (SPEND, "write('ZADD', 'buckets', scores)\n", "")
    ),
    "second spend of a batch sees the bucket of the first": bug(
        "test_spends_from_one_bucket_are_applied_in_order", (SPEND, "buckets[bucket] or tonumber", "tonumber")
    ),
    "refund without limit": bug(
        "test_a_refund_never_fills_a_bucket_above_its_burst",
        (
            SPEND,
            "math.max(buckets[bucket] or tonumber(call('ZSCORE', base .. 'buckets', bucket) or 0), now)",
            "buckets[bucket] or tonumber(call('ZSCORE', base .. 'buckets', bucket) or now)",
        ),
        (SPEND, "math.max(now, full_at + granted * each_us)", "full_at + granted * each_us"),
    ),
    "reservation not paid for": bug(
        "test_a_reservation_is_granted_with_its_wait",
        (SPEND, "granted * each_us", "(is_reserved and 0 or granted * each_us)"),
    ),
    "refused settlement carries": bug(
        "test_a_refused_settlement_carries_nothing", (CARRYING, "== APPLIED then", "~= '' then")
    ),
    "repeated settlement carries again": bug(
        "test_a_repeated_settlement_carries_nothing_twice", (CARRYING, "== APPLIED then", "~= REFUSED then")
    ),
    "settlement without its writes": bug(
        "test_each_settlement_applies_its_own_writes_and_enqueues", (CARRYING, "  store(cells)\n", "")
    ),
    "settlement without its jobs": bug(
        "test_each_settlement_applies_its_own_writes_and_enqueues",
        (CARRYING, "  connect(insert(new, place_of, known, free, number, after))\n", ""),
    ),
    "settled before ids are compared": bug(
        "test_a_settlement_that_cannot_be_written_changes_nothing_and_others_can_be_settled",
        (CARRYING, "  local open, known", "  settle(next_at + 1, crash_limit)\n  local open, known"),
    ),
    "claimed before it was enqueued": bug(
        "test_an_exchange_applies_writes_and_enqueues_before_it_claims",
        (
            CARRY_AND_EXCHANGE,
            "local open, answers",
            "local leases = claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]))\nlocal open, answers",
        ),
        (
            CARRY_AND_EXCHANGE,
            "answers, claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }",
            "answers, leases, dead_lettered }",
        ),
    ),
    "accepted though a condition failed": bug(
        "test_jobs_are_accepted_with_writes_or_not_at_all",
        (
            ACCEPT,
            "if not versions then\n",
            "if not versions then\n  insert(jobs, place_of, known, free, reserve(#jobs), {})\n",
        ),
    ),
    "accepted without the writes": bug(
        "test_jobs_are_accepted_with_writes_or_not_at_all", (ACCEPT, "store(cells)\n", "")
    ),
    "slot held without a lease": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (SLOTS, "return held_until(place.owner_token, state_field(place.number))", "return true"),
    ),
    "slot entered without a lease": bug(
        "test_a_job_without_a_lease_cannot_enter",
        (ENTER, "held[place] = held_until(entry[2], state_field(entry[1]))", "held[place] = true"),
    ),
    "repeated entry enters again": bug(
        "test_repeating_an_entry_returns_the_same_fence", (ENTER, "if is_repeated then", "if false then")
    ),
    "more holders than places": bug(
        "test_as_many_jobs_enter_as_the_slot_has_places",
        (ENTER, "return others >= locked._size(name, size)", "return others > size"),
    ),
    "stored size ignored": bug(
        "test_a_slot_of_size_0_admits_no_job_and_promotes_none", (SLOTS, "0 or stored or size", "0 or size")
    ),
    "closed slot admits": bug(
        "test_a_closed_slot_admits_no_job_before_its_time", (SLOTS, "closed_until > now and 0 or stored", "stored")
    ),
    "closed slot never opens": bug(
        "test_a_slot_that_was_closed_admits_its_size_afterwards",
        (SLOTS, "closed_until > now and", "closed_until > 0 and"),
    ),
    "slot not opened if a promoted job waits": bug(
        "test_a_queue_that_nobody_works_on_does_not_keep_a_slot_closed", (PROMOTE, " or closed_until > 0", "")
    ),
    "stored size ignored when promoting": bug(
        "test_resizing_promotes_exactly_as_many_as_fit",
        (SLOTS, "< locked._size(waiter.slot, waiter.size)", "< waiter.size"),
    ),
    "resized though a condition failed": bug(
        "test_a_refused_write_resizes_nothing",
        (RESIZE, "if not versions then", "locked.resize(cmsgpack.unpack(ARGV[2]))\nif not versions then"),
    ),
    "blocked job stays held": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost", (SLOTS, "      let_go(token, queue, { id })\n", "")
    ),
    "blocked jobs not counted": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost",
        (COUNTS, "processing, call('ZCARD', base .. 'blocked:' .. queue),", "processing, 0,"),
    ),
    "slot of a blocked job not shown": bug(
        "test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost", (VIEW, "slot or false, since", "false, since")
    ),
    "worst job promoted": bug("test_the_best_waiting_job_is_promoted", (SLOTS, "9 - rank(priority)", "rank(priority)")),
    "promotion without a mark": bug(
        "test_a_newcomer_does_not_overtake_a_promoted_job",
        (SLOTS, "digits(until_us) .. ' ' .. queue", "at_once .. ' ' .. queue"),
    ),
    "newcomer takes the place of a promoted job": bug(
        "test_a_newcomer_does_not_overtake_a_promoted_job",
        (ENTER, NOT_FOR_OTHERS, " and place.owner_token"),
    ),
    "promoted jobs wait for each other": bug(
        "test_of_jobs_promoted_in_two_queues_one_enters",
        (ENTER, NOT_FOR_OTHERS, ""),
    ),
    "promotion that never ends": bug(
        "test_a_promotion_expires",
        (ENTER, "promotion.until_us > now and promotion.until_us <= now + PROMOTION_US", "true"),
    ),
    "promotion ends though its job can still enter": bug(
        "test_jobs_that_no_worker_claims_for_long_are_claimed_at_most_twice",
        (SLOTS, "time_of(record[3]) <= now", "place.until_us > now"),
    ),
    "promotion ends with the claim of its job": bug(
        "test_a_promoted_job_that_enters_late_does_not_lose_its_place",
        (SLOTS, "return record[2] == place.queue and (lease_until or 0) > now", "return place.until_us > now"),
    ),
    "promotion outlives the lease of its job": bug(
        "test_a_promoted_job_that_dies_before_it_enters_passes_the_slot_on",
        (SLOTS, " and (lease_until or 0) > now", ""),
    ),
    "promotion of a job that is not due": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on", (SLOTS, " and time_of(record[3]) <= now", "")
    ),
    "promotion in the queue that a job has left": bug(
        "test_a_promoted_job_that_was_rescheduled_passes_the_slot_on",
        (SLOTS, "record[2] == place.queue and (state", "(state"),
    ),
    "promotion of a job that has ended": bug(
        "test_a_promoted_job_that_was_cancelled_passes_the_slot_on",
        (SLOTS, "(state == WAITING or state == FAILED)", "true"),
    ),
    "job returned unstarted loses its turn": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn", (CARRYING, "keeps_turn and reserved or freed", "freed")
    ),
    "job returned unstarted has no promotion mark": bug(
        "test_a_job_that_is_returned_unstarted_keeps_its_turn",
        (SLOTS, "digits(until_us) .. ' ' .. place.queue", "at_once .. ' ' .. place.queue"),
    ),
    "blocked despite a request to cancel": bug(
        "test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked",
        (SLOTS, "held_until(token, record[1]) and record[4]", "false"),
    ),
    "larger limit not looked for": bug(
        "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
        (SLOTS, "until is_last or #found == limit or from >= MAX_READ", "until true"),
    ),
    "larger limit looked for once": bug(
        "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one", (SLOTS, "one.missing > 0", "false")
    ),
    "place given to each of many jobs with a smaller limit": bug(
        "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
        (SLOTS, "size > crowd.ahead", "true"),
    ),
    "every waiting job promoted": bug(
        "test_each_of_many_jobs_is_claimed_at_most_twice",
        (SLOTS, "not locked._has_place(waiter) and not is_finished", "false"),
    ),
    "jobs of one queue promoted": bug(
        "test_a_paused_queue_does_not_keep_the_others_waiting",
        (SLOTS, "ipairs(queues)", "ipairs({ queues[#queues] })"),
    ),
    "one job promoted of all queues": bug(
        "test_a_paused_queue_does_not_keep_the_others_waiting",
        (SLOTS, "if one.owner_token or one.queue == queue then", "if one then"),
        (SLOTS, "    table.sort(queues)\n", "    table.sort(queues, function(one, other) return one > other end)\n"),
    ),
    "promotion in one slot kept by a job blocked on another": bug(
        "test_a_promoted_job_that_is_blocked_elsewhere_passes_the_slot_on",
        (ENTER, "      table.insert(changes.freed, { slot[1], number })\n", ""),
    ),
    "cancelled job promoted": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (CANCEL, "  unblock(id, record[1], queue, priority, record[4])\n", ""),
        (SLOTS, STILL_BLOCKED, "true"),
    ),
    "cancelled job promoted instead of the next": bug(
        "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
        (CANCEL, "  unblock(id, record[1], queue, priority, record[4])\n", ""),
        (SLOTS, "one.stale > 0 or ", ""),
    ),
    "settlement leaves nothing": bug(
        "test_leaving_promotes_the_next_job_in_the_same_commit", (CARRYING, "    locked.leave(freed, reserved)\n", "")
    ),
    "refused settlement leaves": bug(
        "test_a_refused_settlement_leaves_nothing", (CARRYING, "== APPLIED then", "~= '' then")
    ),
    "slot left by its name alone": bug(
        "test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot",
        (CARRYING, "== APPLIED then", "~= '' then"),
        (
            SLOTS,
            "    write('HDEL', 'places:' .. one[1], { one[2] })\n",
            "    write('DEL', 'places:' .. one[1], { base })\n",
        ),
    ),
    "left place stays taken": bug(
        "test_leaving_promotes_the_next_job_in_the_same_commit",
        (SLOTS, "    write('HDEL', 'places:' .. one[1], { one[2] })\n", ""),
        (SLOTS, "return held_until(place.owner_token, state_field(place.number))", "return true"),
    ),
    "dead holder not noticed": bug(
        "test_repair_finishes_what_a_reaper_left_undone",
        (PROMOTE, "(next(gone[name]) or not next(taken[name])", "(next(taken[name])"),
    ),
    "dead holder deleted while jobs wait": bug(
        "test_repair_notices_a_dead_holder_though_another_one_enters_again",
        (SLOTS, "left[#left + 1] = { name, stored[at] }", "call('HDEL', base .. 'places:' .. name, stored[at])"),
    ),
    "dead holder swept while jobs wait": bug(
        "test_repair_notices_a_dead_holder_though_another_one_enters_again",
        (DELETE_UNUSED, "if call('EXISTS', base .. 'queues:' .. name) == 0 then", "if true then"),
    ),
    "repair promotes where there is no place": bug(
        "test_a_refused_settlement_leaves_nothing",
        (PROMOTE, "(next(gone[name]) or", "(true or"),
        (SLOTS, "locked._ahead(waiter.slot, waiter.queue) < locked._size(waiter.slot, waiter.size)", "true"),
        (SLOTS, "size > crowd.ahead", "true"),
    ),
    "fences start at one": bug(
        "test_fences_grow_from_holder_to_holder",
        (ENTER, "local fence = now", "local fence = 0"),
        (SLOTS, STORE_FENCE, ""),
    ),
    "fences of a deleted slot start at one": bug(
        "test_unused_slots_are_deleted", (ENTER, "local fence = now", "local fence = 0")
    ),
    "fences by the clock alone": bug(
        "test_fences_grow_from_holder_to_holder", (ENTER, "math.max(fence, fences[slot[1]] + 1)", "fence")
    ),
    "done work not noticed": bug(
        "test_done_work_spares_the_job_and_all_that_wait",
        (ENTER, "  if #spared == 0 and not full then", "  if not full then"),
    ),
    "done work spares one job": bug(
        "test_done_work_spares_the_job_and_all_that_wait", (SLOTS, "finished[waiter.slot]", "false")
    ),
    "expired mark spares": bug("test_expired_marks_spare_nothing", (ENTER, "version and is_live(expires)", "version")),
    "waiters listed in any order": bug(
        "test_slots_can_be_listed", (LIST_SLOTS, "return one[1] < other[1]", "return one[1] > other[1]")
    ),
    "page of slots begins with the one before it": bug(
        "test_slots_can_be_listed", (LIST_SLOTS, "'(' .. ARGV[4]", "'[' .. ARGV[4]")
    ),
    "promoted job has a fence": bug(
        "test_slots_can_be_listed", (LIST_SLOTS, "one.owner_token and one.fence or false", "one.fence")
    ),
    "places of dead jobs stay": bug(
        "test_unused_slots_are_deleted",
        (DELETE_UNUSED, "      rows.free(left)\n", ""),
    ),
    "unique key not stored": bug(
        "test_a_second_job_with_the_key_is_not_stored", (ACCEPT_UNIQUE, "uniques.store(taken)\n", "")
    ),
    "second job of a call with the key stored": bug(
        "test_of_jobs_in_one_call_the_first_is_stored", (UNIQUES, "local row = taken[key]", "local row = nil")
    ),
    "accepted though a key was refused": bug(
        "test_a_rejected_job_refuses_the_whole_call",
        (
            ACCEPT_UNIQUE,
            "if not duplicates then\n",
            "if not duplicates then\n  insert(jobs, place_of, known, free, reserve(#jobs), {})\n",
        ),
    ),
    "key stays with a job that runs": bug(
        "test_while_it_waits_ends_with_the_start_of_the_job",
        (UNIQUES, "return not STARTED[state]", "return not FINISHED[state]"),
    ),
    "key is free while a job runs": bug(
        "test_until_done_ends_with_the_job", (UNIQUES, "return not FINISHED[state]", "return not STARTED[state]")
    ),
    "key of a blocked job is free": bug(
        "test_a_blocked_job_is_waiting", (UNIQUES, "STARTED = {", "STARTED = { [BLOCKED] = true,")
    ),
    "period ends with its job": bug(
        "test_a_period_ends_by_the_clock_alone",
        (UNIQUES, "return row.job_id ~= '' and row.until_us > now", "return state and not FINISHED[state]"),
    ),
    "period without end": bug("test_a_period_ends_by_the_clock_alone", (UNIQUES, " and row.until_us > now", "")),
    "key deleted before its period ends": bug(
        "test_a_period_ends_by_the_clock_alone", (DELETE_UNUSED, "time_of(expires) <= now and ", "")
    ),
    "key of an open job deleted": bug(
        "test_unused_keys_are_deleted", (DELETE_UNUSED, "or FINISHED[state]) then", "or state) then")
    ),
    "repeated call takes its successor for its job": bug(
        "test_repeating_a_call_answers_for_its_own_job", (UNIQUES, "if not state(id) and not", "if not")
    ),
    "key taken despite a conflict of ids": bug(
        "test_an_id_conflict_takes_no_key",
        (ACCEPT_UNIQUE, IF_UNKNOWN, ""),
        (ACCEPT_UNIQUE, "uniques.store(taken)\n", "uniques.store(taken)\n" + IF_UNKNOWN),
    ),
    "key taken by a refused call": bug(
        "test_a_rejected_job_refuses_the_whole_call",
        (UNIQUES, "        return nil, { key", "        uniques.store(taken)\n        return nil, { key"),
    ),
    "key taken though a condition failed": bug(
        "test_a_failed_condition_takes_no_key",
        (ACCEPT_UNIQUE, "if not versions then\n", "if not versions then\n  uniques.store(taken)\n"),
    ),
    "running job rescheduled": bug(
        "test_a_job_that_has_started_is_not_rescheduled",
        (RESCHEDULE, "if state == WAITING", "if state == PROCESSING or state == WAITING"),
    ),
    "rescheduled job keeps its message": bug(
        "test_a_rescheduled_job_gets_its_new_message_and_time",
        (RESCHEDULE, "    call('SET', base .. 'wire:' .. id, wire)\n", ""),
    ),
    "rescheduled job keeps its time": bug(
        "test_a_rescheduled_job_gets_its_new_message_and_time",
        (RESCHEDULE, "due_of(delay, due, immediate)", "record[4]"),
    ),
    "rescheduled job in both queues": bug(
        "test_a_rescheduled_job_is_counted_once",
        (RESCHEDULE, "    write('ZREM', 'ready:' .. old_queue .. ':' .. rank(record[3]), { id })\n", ""),
    ),
    "rescheduled job still waits for its slot": bug(
        "test_a_blocked_job_can_be_rescheduled",
        (RESCHEDULE, "      unblock(id, record[1], old_queue, record[3], record[4])\n", ""),
    ),
    "rescheduled job forgets its attempts": bug(
        "test_a_failed_job_can_be_rescheduled_and_keeps_its_attempts",
        (RESCHEDULE, "'priority', priority }", "'priority', priority, 'attempts', 0 }"),
    ),
    "child not blocked": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed",
        (
            ACCEPTING,
            "        state, index, first = BLOCKED .. ':' .. at_once, 'blocked:' .. queue, at_once\n",
            "",
        ),
    ),
    "time of a blocked child not shown": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (VIEW, "since or false", "slot and since or false")
    ),
    "blocked child not counted": bug(
        "test_blocked_children_are_counted_and_found",
        (ACCEPTING, "'blocked:' .. queue, at_once", "'blocked:' .. queue .. '-', at_once"),
    ),
    "child waits for one of its parents": bug(
        "test_parents_that_complete_one_after_the_other_release_the_child_once",
        (EDGES, "ipairs(parents) do", "ipairs({ parents[1] }) do"),
    ),
    "first parent releases the child": bug(
        "test_parents_that_complete_one_after_the_other_release_the_child_once",
        (EDGES, "if not edges.has(child, EDGE_OPEN) then", "if true then"),
    ),
    "unknown parent accepted": bug(
        "test_an_unknown_parent_refuses_the_whole_call", (EDGES, "if not there[parent] then", "if false then")
    ),
    "tombstone taken for a parent": bug(
        "test_an_unknown_parent_refuses_the_whole_call",
        (EDGES, "state and state ~= FORGOTTEN or false", "state and true or false"),
    ),
    "end of a completed parent not noted": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (ENDING, "  note(ids)\n", "")
    ),
    "end of any other parent not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (ENDING, "    note({ id })\n", "")
    ),
    "reaped parent not noted": bug(
        "test_every_end_of_a_parent_is_noticed",
        (REAP, "  local changes = { 'crashes'", UNNOTED + "local changes = { 'crashes'"),
    ),
    "parent cancelled by an operator not noted": bug(
        "test_every_end_of_a_parent_is_noticed", (CANCEL, "local _, deliveries", UNNOTED + "local _, deliveries")
    ),
    "parent cancelled on entry not noted": bug(
        "test_every_end_of_a_parent_is_noticed",
        (SLOTS, "      end_delivery(token", UNNOTED + "      end_delivery(token"),
    ),
    "deleted parent not noted": bug("test_a_deleted_parent_counts_as_failed", (FORGETTING, "  note({ id })\n", "")),
    "replayed parent not noted": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else", (REPLAY, "note({ id })\n", "")
    ),
    "parent that has ended not noted": bug(
        "test_a_parent_that_has_ended_counts_at_once",
        (EDGES, "if not state or FINISHED[state] then\n      leave_note", "if false then\n      leave_note"),
    ),
    "cancelled child not noted": bug(
        "test_a_cascade_reaches_every_descendant",
        (EDGES, "  move(id, record[2], record[3], CANCELLED", UNNOTED + "  move(id, record[2], record[3], CANCELLED"),
    ),
    "reopened child not noted": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else", (EDGES, "  note({ id })\n", "")
    ),
    "settlement leaves its notes to repair": bug(
        "test_a_child_is_blocked_until_its_parent_has_completed", (SETTLE_ONLY, "resolve_noted()\n", "")
    ),
    "exchange leaves its notes to repair": bug(
        "test_a_settlement_releases_the_children_in_the_same_call", (EXCHANGE, "resolve_noted()\n", "")
    ),
    "settlement without the edges of its jobs": bug(
        "test_a_settlement_can_enqueue_a_child_of_its_job", (CARRYING, "  connect(insert(", "  unpack(insert(")
    ),
    "notes not read by repair": bug(
        "test_no_call_changes_more_than_a_thousand_children", (PROMOTE, "call('EXISTS', base .. 'notes')", "0")
    ),
    "notes deleted at once": bug(
        "test_no_call_changes_more_than_a_thousand_children",
        (EDGES, "if changed < MAX_CHILDREN then", "if true then"),
    ),
    "failures ignored": bug(
        "test_every_end_of_a_parent_is_noticed",
        (EDGES, "elseif not state or FINISHED[state] then", "elseif not state then"),
    ),
    "failed parent taken for a completed one": bug(
        "test_a_cascade_reaches_every_descendant",
        (EDGES, "if state == COMPLETED then", "if state == COMPLETED or state == DEAD then"),
    ),
    "every policy cancels": bug(
        "test_a_parent_that_has_ended_counts_at_once",
        (EDGES, "turn(TO_RUN, EDGE_OPEN, EDGE_MET)", "turn(TO_RUN, EDGE_OPEN, EDGE_CANCELLED)"),
    ),
    "waiting for a replay is cancelled": bug(
        "test_a_deleted_parent_counts_as_failed",
        (EDGES, "if not state then\n      turn(TO_WAIT", "if true then\n      turn(TO_WAIT"),
    ),
    "waits for a deleted parent": bug(
        "test_a_deleted_parent_counts_as_failed", (EDGES, "      turn(TO_WAIT, EDGE_OPEN, EDGE_CANCELLED)\n", "")
    ),
    "replay revives nothing": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (EDGES, "      turn(policy, EDGE_CANCELLED, EDGE_OPEN)\n", ""),
    ),
    "child cancelled before the replay of its parent not found": bug(
        "test_a_replayed_parent_that_completes_at_once_releases_all_that_it_cancelled",
        (EDGES, "      turn(policy, EDGE_CANCELLED, EDGE_MET)\n", ""),
    ),
    "child cancelled once it waits for no parent": bug(
        "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed",
        (EDGES, IF_CANCELLED, IF_CANCELLED.replace(" then", " and not edges.has(child, EDGE_OPEN) then")),
    ),
    "one replay revives the child of two": bug(
        "test_a_child_of_two_failed_parents_is_revived_when_both_are_replayed",
        (
            EDGES,
            IF_CANCELLED,
            IF_CANCELLED.replace(" then", " and not (is_cancelled and edges.has(child, EDGE_OPEN)) then"),
        ),
    ),
    "child cancelled by an operator revived": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (EDGES, " and record[5] == PARENT_FAILED", ""),
    ),
    "child cancelled without a reason": bug(
        "test_every_end_of_a_parent_is_noticed", (EDGES, "'cancel_reason', PARENT_FAILED }", "'cancel_reason', '' }")
    ),
    "reopened child has its reason": bug(
        "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
        (EDGES, "  try('HDEL', base .. 'job:' .. id, 'cancel_reason')\n", ""),
    ),
    "released child due at once": bug(
        "test_a_released_child_keeps_its_due_time_and_priority", (EDGES, "digits(time_of(due)), {})", "at_once, {})")
    ),
    "released child has no priority": bug(
        "test_a_released_child_keeps_its_due_time_and_priority",
        (EDGES, "move(id, queue, priority, WAITING", "move(id, queue, '5', WAITING"),
    ),
    "child released by its replacement": bug(
        "test_a_rescheduled_child_still_waits", (RESCHEDULE, "state == BLOCKED and slot == ''", "false")
    ),
    "replayed child does not wait for its other parents": bug(
        "test_a_replayed_child_runs_although_its_parent_failed", (REPLAY, "edges.has(name, EDGE_OPEN)", "false")
    ),
    "replayed child waits for the parent that failed": bug(
        "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed", (REPLAY, "disregard_failed(name)\n", "")
    ),
    "parent of an unfinished child pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children", (SIFT, "ARGV[7] == '1'", "false")
    ),
    "parent of a released child pruned": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (EDGES, "not FINISHED[state_of(record[1])] then", "state_of(record[1]) == BLOCKED then"),
    ),
    "spared parents hide the others": bug(
        "test_a_parent_is_retained_for_its_unfinished_children",
        (SIFT, "      is_needed = true\n", "      return false\n"),
    ),
    "met edges counted as open": bug(
        "test_relatives_are_listed", (RELATIVES, "EDGE_OPEN, EDGE_OPEN + TO_WAIT)", "EDGE_OPEN, EDGE_MET + TO_WAIT)")
    ),
    "relatives in any order": bug(
        "test_relatives_are_listed", (RELATIVES, "return one[1] < other[1]", "return one[1] > other[1]")
    ),
}


class PlantedScript(Script):
    """A script with this source."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()


def planted(edits: Iterable[Edit]) -> type[RedisEngine]:
    """The engine with these edits."""
    planting = Planting(edits)

    class Planted(RedisEngine):
        def __init__(
            self,
            url: str,
            envelopes: EnvelopeFactory,
            *,
            policy: LeasePolicy = DEFAULT_POLICY,
            clock: Clock = SYSTEM_CLOCK,
            prefix: str = "holdfast_",
        ) -> None:
            super().__init__(url, envelopes, policy=policy, clock=clock, prefix=prefix)
            run = self.connections.run

            def run_edited(script: Script, *arguments: bytes | str | int, **options: Any) -> Any:
                source = planting.edited(script.source.decode(), clock)
                return run(PlantedScript(source), *arguments, **options)

            self.connections.run = run_edited  # type: ignore[method-assign]

    return Planted


@contextmanager
def lab_of(bug: Bug) -> Generator[Lab]:
    with redis_lab(planted(bug.edits)) as lab:
        yield lab


HEALTHY = partial(lab_of, bug(""))
PLANTS = {name: Plant(bug.breaks, partial(lab_of, bug)) for name, bug in BUGS.items()}
