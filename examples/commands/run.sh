#!/bin/sh
# Enqueue the jobs of jobs.jsonl, work them, and look at what became of them.
set -eu

holdfast enqueue @jobs.jsonl
# Three jobs, of which one fails and is tried once more: four attempts.
holdfast worker start --max-jobs 4
holdfast list
holdfast dlq show broken
