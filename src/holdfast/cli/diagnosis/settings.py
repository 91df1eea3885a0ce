"""Problems with the settings, as `config check` reports them, and with worker options that do not fit them."""

from collections.abc import Iterable

from msgspec import structs

from holdfast.cli.diagnosis import Finding, Findings, error, fine, note, warning
from holdfast.config import KEYS, Found, Origin, Place, Problem, Reading, Settings, read_settings
from holdfast.deployment import DEFAULT, Deployment
from holdfast.units import format_duration

ABOUT_KEYS = frozenset({"signing-key", "signing-key-file", "verify", "allow-unsigned"})


def reading_of(deployment: Deployment, url: str | None) -> Reading:
    """The settings, overridden by the application and by `--url`."""
    reading = read_settings(deployment.project)
    decided = {name: getattr(deployment.settings, key.field) for name, key in KEYS.items() if key.in_file}
    decided["backends"] = {name: deployment.url(name) for name in deployment.others}
    decided["url"] = "" if deployment.url() == deployment.project.default_url else deployment.url()
    if deployment.signing_key is not None:
        decided["signing-key"] = deployment.signing_key
    found = dict(reading.found)
    for name, value in decided.items():
        if value != reading.of(KEYS[name]).value:
            found[name] = Found(value=value, origin=Origin(place=Place.APPLICATION))
    if url is not None and url != DEFAULT:
        found["url"] = Found(value=deployment.url(), origin=Origin(place=Place.FLAG, name="--url"))
    return structs.replace(reading, found=found)


def problem_findings(problems: Iterable[Problem]) -> Findings:
    """The problems of the settings as findings."""
    for problem in problems:
        report = warning if problem.warning else error
        check = "keys" if problem.key in ABOUT_KEYS else "settings"
        yield report(check, problem.message, problem.advice)


def is_reported(problem: Exception, findings: Iterable[Finding]) -> bool:
    """Whether a finding already reports the exception. One of the two texts may contain more than the other."""
    return any(each.message in str(problem) or str(problem) in each.message for each in findings)


def worker_option_findings(settings: Settings, *, grace_s: float, kill_after_s: float) -> Findings:
    """Check the worker options against the settings."""
    if 0 < grace_s < 1:
        yield warning(
            "settings",
            f"the grace period is {format_duration(grace_s)}: when a worker stops, nearly every running job is "
            "interrupted and run again",
            "give running jobs time to finish:  holdfast worker start --grace 30s",
        )
    if kill_after_s >= settings.lease:
        yield warning(
            "settings",
            f"--kill-after is {format_duration(kill_after_s)}, longer than the lease of "
            f"{format_duration(settings.lease)}: a cancelled or timed-out job that does not stop may still be running "
            "when another worker starts it",
            "make --kill-after shorter than the lease, or the lease longer",
        )
    if grace_s and settings.timeout and grace_s > settings.timeout:
        yield note(
            "settings",
            f"the grace period of {format_duration(grace_s)} is longer than the timeout of jobs, "
            f"{format_duration(settings.timeout)}",
            "only jobs with their own timeout can make a stopping worker wait that long",
        )


def settings_findings(
    problems: Iterable[Problem], settings: Settings, *, grace_s: float, kill_after_s: float
) -> Findings:
    """All problems with the settings, or one line if there are none."""
    found = [
        *problem_findings(problems),
        *worker_option_findings(settings, grace_s=grace_s, kill_after_s=kill_after_s),
    ]
    yield from found
    if all(each.check != "settings" for each in found):
        grace = format_duration(grace_s) if grace_s else "unlimited"
        yield fine("settings", f"lease {format_duration(settings.lease)}, grace period {grace}")
