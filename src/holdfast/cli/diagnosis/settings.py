"""Settings that are each in their range and together make no sense."""

from holdfast.cli.diagnosis import Findings, fine, note, warning
from holdfast.cli.output import span
from holdfast.config import Settings
from holdfast.values import BackoffStrategy

# Renewal comes every third of a lease: below this, the pause of a busy machine costs leases.
SHORTEST_SANE_LEASE_S = 3.0


def settings_findings(settings: Settings, *, grace_s: float, kill_after_s: float) -> Findings:
    """Leases, the grace of workers started so, and what else contradicts itself."""
    found = [*_leases(settings), *_grace(settings, grace_s, kill_after_s), *_backoff(settings)]
    yield from found or [
        fine("settings", f"lease {span(settings.lease)}, grace {span(grace_s) if grace_s else 'without end'}")
    ]


def _leases(settings: Settings) -> Findings:
    lease = settings.lease
    if lease < SHORTEST_SANE_LEASE_S:
        yield warning(
            "settings",
            f"lease is {span(lease)}: it has to be renewed every {span(lease / 3)}, and a busy machine will miss that; "
            "jobs will be taken from workers that are well",
            "make it longer, 60s if in doubt:  holdfast config set lease 60s",
        )
    if settings.poll_interval > lease:
        yield warning(
            "settings",
            f"poll-interval ({span(settings.poll_interval)}) is longer than lease ({span(lease)}): "
            "what a dead worker held lies about after it was given back",
            "make poll-interval shorter:  holdfast config set poll-interval 1s",
        )
    if settings.reap_interval > lease / 2:
        yield note(
            "settings",
            f"reap-interval ({span(settings.reap_interval)}) has no effect: workers look every {span(lease / 2)}, half "
            "a lease, at the latest",
        )
    if settings.crash_limit == 1:
        yield warning(
            "settings",
            "crash-limit is 1: every job whose worker is killed or cut off from its engine becomes a dead letter",
            "let a job survive one crash of its worker:  holdfast config set crash-limit 3",
        )


def _grace(settings: Settings, grace_s: float, kill_after_s: float) -> Findings:
    if 0 < grace_s < 1:
        yield warning(
            "settings",
            f"the grace is {span(grace_s)}: nearly every running job is interrupted and run again when a worker stops",
            "start workers with a grace their usual job fits in:  holdfast worker start --grace 30s",
        )
    if kill_after_s >= settings.lease:
        yield warning(
            "settings",
            f"a job may take {span(kill_after_s)} to be killed, longer than a lease ({span(settings.lease)}): "
            "one that is cancelled or timed out and does not stop goes on for longer than another worker would wait",
            "give --kill-after less than the lease, or make the lease longer",
        )
    if grace_s and settings.timeout and grace_s > settings.timeout:
        yield note(
            "settings",
            f"the grace ({span(grace_s)}) is longer than any job may take (timeout {span(settings.timeout)})",
            "a worker that has not stopped after the timeout waits for jobs with a timeout of their own",
        )


def _backoff(settings: Settings) -> Findings:
    cap = settings.backoff_max
    if settings.backoff != BackoffStrategy.NONE and cap and settings.backoff_base > cap:
        yield warning(
            "settings",
            f"backoff-base ({settings.backoff_base:g} s) is longer than backoff-max ({span(cap)}): every delay is cut "
            "to that, and none grows",
            "make backoff-max longer, or backoff-base shorter",
        )
