"""What is wrong with the settings, in the words of `config check`, and with options of workers that go by them."""

from collections.abc import Iterable

from msgspec import structs

from holdfast.cli.diagnosis import Finding, Findings, error, fine, note, warning
from holdfast.config import KEYS, Found, Origin, Place, Problem, Reading, Settings, read_settings
from holdfast.deployment import DEFAULT, Deployment
from holdfast.units import format_duration

ABOUT_KEYS = frozenset({"signing-key", "signing-key-file", "verify", "allow-unsigned"})


def reading_of(deployment: Deployment, url: str | None) -> Reading:
    """What the settings say, and over them what `--url`, or else the application, has decided."""
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
    """Problems of settings as findings; of some the message says what to do."""
    for problem in problems:
        tell = warning if problem.warning else error
        check = "keys" if problem.key in ABOUT_KEYS else "settings"
        yield tell(check, problem.message, problem.advice)


def is_told(problem: Exception, told: Iterable[Finding]) -> bool:
    """Whether a finding says what was raised: the one names the place, the other may say that there are more."""
    return any(one.message in str(problem) or str(problem) in one.message for one in told)


def worker_option_findings(settings: Settings, *, grace_s: float, kill_after_s: float) -> Findings:
    """The options that workers are started with, beside the settings."""
    if 0 < grace_s < 1:
        yield warning(
            "settings",
            f"the grace period is {format_duration(grace_s)}: when a worker stops, nearly every running job is "
            "interrupted and run again",
            "start workers with a grace their usual job fits in:  holdfast worker start --grace 30s",
        )
    if kill_after_s >= settings.lease:
        yield warning(
            "settings",
            f"--kill-after is {format_duration(kill_after_s)}, and a lease only {format_duration(settings.lease)}: "
            "a cancelled or timed-out job that does not stop may still run when another worker starts it",
            "give --kill-after less than the lease, or make the lease longer",
        )
    if grace_s and settings.timeout and grace_s > settings.timeout:
        yield note(
            "settings",
            f"the grace period of {format_duration(grace_s)} is longer than the timeout of jobs, "
            f"{format_duration(settings.timeout)}",
            "a worker that has not stopped after the timeout waits for jobs with a timeout of their own",
        )


def settings_findings(
    problems: Iterable[Problem], settings: Settings, *, grace_s: float, kill_after_s: float
) -> Findings:
    """All that is wrong with them; or a line that says they are well."""
    found = [
        *problem_findings(problems),
        *worker_option_findings(settings, grace_s=grace_s, kill_after_s=kill_after_s),
    ]
    yield from found
    if all(one.check != "settings" for one in found):
        yield fine(
            "settings",
            f"lease {format_duration(settings.lease)}, grace {format_duration(grace_s) if grace_s else 'without end'}",
        )
