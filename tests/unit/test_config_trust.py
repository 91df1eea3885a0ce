"""Which projects are used because they were found, by their owners and modes. Files have owners by a stand-in."""

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from holdfast.config import find_project
from holdfast.errors import ConfigError

ME, ROOT, OTHER = 4001, 0, 4002
PRIVATE, TEAM = 4001, 4100


class Owners:
    """Gives files an owner, a group and a mode that the file system need not grant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._given: dict[Path, tuple[int, int, int]] = {}
        self._lstat = Path.lstat
        self.users: dict[int, tuple[str, int]] = {ME: ("me", PRIVATE), ROOT: ("root", 0), OTHER: ("other", 4002)}
        self.groups: dict[int, tuple[str, list[str]]] = {
            PRIVATE: ("me", []),
            0: ("root", []),
            4002: ("other", []),
            TEAM: ("team", ["me", "other"]),
        }

        def lstat(path: Path) -> os.stat_result:
            return self.lstat(path)

        monkeypatch.setattr(Path, "lstat", lstat)
        monkeypatch.setattr(os, "geteuid", lambda: ME)
        monkeypatch.setattr(pwd, "getpwuid", self.user)
        monkeypatch.setattr(grp, "getgrgid", self.group)

    def user(self, uid: int) -> pwd.struct_passwd:
        name, gid = self.users[uid]
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    def group(self, gid: int) -> grp.struct_group:
        name, members = self.groups[gid]
        return grp.struct_group((name, "x", gid, members))

    def give(self, path: Path, uid: int = ME, gid: int = PRIVATE, mode: int = 0o755) -> None:
        self._given[path] = (uid, gid, mode)

    def lstat(self, path: Path) -> os.stat_result:
        real = self._lstat(path)
        uid, gid, mode = self._given.get(path, (ME, PRIVATE, 0o755))
        return os.stat_result((stat.S_IFMT(real.st_mode) | mode, *real[1:4], uid, gid, *real[6:]))


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Owners:
    monkeypatch.delenv("HOLDFAST_PROJECT", raising=False)
    return Owners(monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and the current directory below it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    project = tmp_path / "project"
    (project / "build").mkdir(parents=True)
    monkeypatch.chdir(project / "build")
    return project


def planted(project: Path, text: str = "", name: str = "holdfast.toml") -> Path:
    file = project / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("uid", "gid", "mode"),
    [
        (ME, PRIVATE, 0o700),
        (ME, PRIVATE, 0o775),
        (ME, TEAM, 0o755),
        (ROOT, 0, 0o755),
        (ROOT, 0, 0o775),
        (ROOT, TEAM, 0o750),
    ],
)
@pytest.mark.parametrize("which", ["directory", "file"])
def test_what_only_this_user_or_root_can_change_is_used(
    owners: Owners, project: Path, which: str, uid: int, gid: int, mode: int
) -> None:
    file = planted(project)
    owners.give(project if which == "directory" else file, uid, gid, mode)
    assert find_project().directory == project


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "problem", "remedy"),
    [
        (OTHER, OTHER, 0o755, "belongs to user other (uid 4002), and you are user me (uid 4001)", "as user other"),
        (4999, 4999, 0o755, "belongs to uid 4999, and you are", "as uid 4999"),
        (ME, PRIVATE, 0o777, "every user can write to {path} (mode 0777)", "chmod o-w {path}"),
        (ROOT, 0, 0o1777, "every user can create files in {path} (mode 1777)", "Move the project from {path}"),
        (ME, TEAM, 0o775, "group team can write to {path} (mode 0775)", "chmod g-w {path}"),
        (ME, 4998, 0o775, "group 4998 can write to {path} (mode 0775)", "chmod g-w {path}"),
        (ROOT, TEAM, 0o2775, "group team can write to {path} (mode 2775)", "chmod g-w {path}"),
        (ROOT, PRIVATE, 0o775, "group me can write to {path}", "chmod g-w {path}"),
    ],
)
@pytest.mark.parametrize("which", ["directory", "file"])
def test_what_another_user_can_change_is_refused_with_what_to_do(
    owners: Owners, project: Path, which: str, uid: int, gid: int, mode: int, problem: str, remedy: str
) -> None:
    file = planted(project)
    path = project if which == "directory" else file
    owners.give(path, uid, gid, mode)
    with pytest.raises(ConfigError) as caught:
        find_project()
    message = str(caught.value)
    assert message.startswith(f"refusing to use {file}: ")
    assert problem.format(path=path) in message
    assert remedy.format(path=path) in message
    assert f"--project {project} " in message
    assert message.endswith(f"HOLDFAST_PROJECT={project}")


def test_a_private_group_has_no_other_member(owners: Owners, project: Path) -> None:
    planted(project)
    owners.give(project, ME, PRIVATE, 0o775)
    owners.groups[PRIVATE] = ("me", ["me"])
    assert find_project().directory == project
    owners.groups[PRIVATE] = ("me", ["me", "other"])
    with pytest.raises(ConfigError, match="group me can write"):
        find_project()
    owners.groups[PRIVATE] = ("users", [])
    with pytest.raises(ConfigError, match="group users can write"):
        find_project()


@pytest.mark.parametrize("which", ["target", "its directory", "the link"])
def test_a_link_is_as_good_as_its_target(owners: Owners, project: Path, tmp_path: Path, which: str) -> None:
    target = tmp_path / "elsewhere" / "settings.toml"
    target.parent.mkdir()
    target.touch()
    link = project / "holdfast.toml"
    link.symlink_to(target)
    owners.give(link, ME, PRIVATE, 0o777)
    assert find_project().directory == project
    owners.give({"target": target, "its directory": target.parent, "the link": link}[which], OTHER)
    with pytest.raises(ConfigError, match=r"holdfast\.toml: .* belongs to user other"):
        find_project()


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_project_that_is_named_is_trusted(
    owners: Owners, project: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    planted(project, "lease = 5")
    owners.give(project, OTHER, OTHER, 0o777)
    if by == "variable":
        monkeypatch.setenv("HOLDFAST_PROJECT", "..")
    found = find_project(project if by == "argument" else None).directory
    assert found is not None
    assert found.resolve() == project


def test_what_is_above_a_named_directory_is_not_trusted(owners: Owners, project: Path) -> None:
    planted(project)
    owners.give(project, OTHER)
    with pytest.raises(ConfigError, match="refusing to use"):
        find_project(project / "build")


def test_a_named_project_needs_no_file_and_hides_those_above(
    owners: Owners, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(project)
    monkeypatch.setenv("HOLDFAST_PROJECT", str(project / "build"))
    found = find_project()
    assert found.directory == project / "build"
    assert found.config_file == project / "build" / "holdfast.toml"
    assert find_project(project).directory == project  # an argument takes precedence
    monkeypatch.setenv("HOLDFAST_PROJECT", str(project / "holdfast.toml"))
    with pytest.raises(
        ConfigError, match="is not a directory: set --project or HOLDFAST_PROJECT to a project directory"
    ):
        find_project()
    monkeypatch.setenv("HOLDFAST_PROJECT", "")
    assert find_project().directory == project


UNRELATED = '[project]\nname = "other"\n'


@pytest.mark.parametrize("text", [UNRELATED, "[broken", "\udcff"])
def test_an_unrelated_pyproject_of_another_user_is_skipped(owners: Owners, project: Path, text: str) -> None:
    file = project / "pyproject.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    owners.give(file, OTHER)
    assert find_project().directory is None
    above = planted(project.parent)
    assert find_project().config_file == above


@pytest.mark.parametrize("why", ["table", "dependency", "data", "link"])
def test_a_pyproject_of_another_user_that_concerns_holdfast_is_refused(owners: Owners, project: Path, why: str) -> None:
    text = {"table": "[tool.holdfast]\n", "dependency": '[project]\ndependencies = ["holdfast"]\n'}.get(why, UNRELATED)
    owners.give(planted(project, text, "pyproject.toml"), OTHER)
    if why == "data":
        (project / ".holdfast").mkdir()
    if why == "link":
        (project / ".holdfast").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"refusing to use .*pyproject\.toml"):
        find_project()


def test_the_data_directory_may_be_a_link_only_to_one_that_is_trusted(
    owners: Owners, project: Path, tmp_path: Path
) -> None:
    planted(project)
    data = project / ".holdfast"
    data.symlink_to(tmp_path / "data")
    assert find_project().data_directory == data
    (tmp_path / "data").mkdir()
    assert find_project().data_directory == data
    owners.give(tmp_path / "data", OTHER)
    with pytest.raises(ConfigError, match=f"refusing to use {data}: {tmp_path}/data belongs to user other"):
        find_project()


def test_the_data_directory_may_belong_to_the_user_of_a_service(owners: Owners, project: Path) -> None:
    planted(project)
    (project / ".holdfast").mkdir()
    owners.give(project / ".holdfast", OTHER, OTHER, 0o700)
    assert find_project().data_directory == project / ".holdfast"
