"""Only `holdfast/cli/output.py` writes to stdout and stderr, because only it makes text safe for a terminal."""

import ast
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
WRITER = "cli/output.py"
# Why these modules may write as well.
ALLOWED = {
    "worker/service.py": "a signal handler must not wait for the lock of sys.stderr; it prints only numbers",
    "worker/reload.py": "the default for programs; the command line passes `note`",
    "testing/turns.py": "the jobs of a test print to the stdout of that test",
}
STREAMS = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")
CLICK = ("echo", "secho", "confirm", "prompt", "echo_via_pager", "style")
# Asking a stream about itself writes nothing.
QUESTIONS = ("isatty", "fileno", "encoding", "flush", "reconfigure")


def writes(source: str) -> list[str]:
    """The expressions of a module that can write to stdout or stderr."""
    tree = ast.parse(source)
    asked = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in QUESTIONS}
    passed = {
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
        for argument in node.args
    }
    compared = {part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="print"):
                found.append("print")
            case ast.Attribute(value=ast.Name(id="click"), attr=name) if name in CLICK:
                found.append(f"click.{name}")
            case ast.Attribute(ctx=ast.Load()) if ast.unparse(node) in STREAMS:
                if node not in asked | passed | compared:
                    found.append(ast.unparse(node))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(1 | 2), *_]):
                found.append(ast.unparse(node))
            case _:
                pass
    return found


@pytest.mark.parametrize("module", [module for module in MODULES if module not in (WRITER, *ALLOWED)])
def test_only_the_writer_writes(module: str) -> None:
    assert writes((SOURCE / module).read_text()) == []


@pytest.mark.parametrize("module", [WRITER, *ALLOWED])
def test_what_is_allowed_is_needed(module: str) -> None:
    assert writes((SOURCE / module).read_text()) != []


@pytest.mark.parametrize(
    "statement",
    [
        "print('x')",
        "partial(print, file=file)",
        "click.echo(x)",
        "sys.stdout.write(x)",
        "sys.stderr.buffer.write(x)",
        "csv.writer(sys.stdout)",
        "os.write(2, x)",
    ],
)
def test_a_write_is_found(statement: str) -> None:
    assert len(writes(statement)) == 1


def test_a_question_is_not_a_write() -> None:
    assert writes("sys.stdout.isatty() and os.write(pipe, x) and getattr(sys.stdout, 'encoding')") == []
