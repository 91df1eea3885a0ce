#!/bin/sh
# Enqueue the jobs in jobs.jsonl, run them, check their results, and fix and retry the one that failed.
set -eu

holdfast enqueue @jobs.jsonl
# Four jobs, one of which fails and is retried once: five attempts.
holdfast worker start --max-jobs 5
holdfast list
holdfast dlq show totals

sort names.txt >totals.txt
holdfast dlq retry totals
holdfast worker start --burst
holdfast logs totals
