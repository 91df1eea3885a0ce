#!/bin/sh
# Enqueue the jobs of jobs.jsonl, work them, look at what became of them, and mend the one that failed.
set -eu

holdfast enqueue @jobs.jsonl
# Four jobs, of which one fails and is tried once more: five attempts.
holdfast worker start --max-jobs 5
holdfast list
holdfast dlq show totals

sort names.txt >totals.txt
holdfast dlq retry totals
holdfast worker start --burst
holdfast logs totals
