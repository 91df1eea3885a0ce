"""The screen of `holdfast top`: panes and keys, drawn with Textual (the extra `tui`)."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from holdfast.cli.status import worker_line
from holdfast.cli.style import COLOURS
from holdfast.cli.top import Board, Snapshot, job_cells
from holdfast.cli.words import age
from holdfast.errors import HoldfastError
from holdfast.plaintext import one_line, plain
from holdfast.values import JobState, WorkerState

JOB_COLUMNS: Final = ("", "ID", "STATE", "JOB", "QUEUE", "TRY", "AGE", "MESSAGE")
QUEUE_COLUMNS: Final = ("QUEUE", "WAITING", "RUNNING", "FAILED", "DEAD")
WORKER_COLUMNS: Final = ("WORKER", "STATE", "SLOTS", "SEEN")
HELP: Final = (
    "/ filter · esc clear filter · tab next pane · x select · r retry · c cancel · "
    "D discard dead letters (several: press twice) · p pause or resume the queue · l refresh on or off · q quit"
)
Cells = Sequence[str | Text]


class Screen(App[int]):
    """The screen. Threads query the engine, so that a slow engine does not block the keys."""

    TITLE = "holdfast top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 2; padding: 0 1; }
    #filter { display: none; height: 3; }
    #queues { width: 1fr; }
    #jobs { width: 3fr; }
    #workers { width: 1fr; }
    #log { height: 5; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "clear_filter", "Clear filter", show=False),
        Binding("x", "select", "Select"),
        Binding("r", "retry", "Retry"),
        Binding("c", "cancel", "Cancel"),
        Binding("D", "discard", "Discard"),
        Binding("p", "pause", "Pause queue"),
        Binding("l", "live", "Live"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "leave", "Quit"),
        Binding("ctrl+c", "leave", "Quit", show=False, priority=True),
    ]

    def __init__(self, board: Board, *, every_s: float) -> None:
        super().__init__()
        self._board = board
        self._every_s = every_s
        self._words = ""
        self._is_live = True
        self._selected: set[str] = set()
        # The jobs that D will discard if it is pressed again.
        self._to_discard: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Input(id="filter", placeholder="filter by words: an id, a state, a name, a queue, an error")
        with Horizontal():
            yield DataTable[Text](id="queues", cursor_type="row")
            yield DataTable[Text](id="jobs", cursor_type="row")
            yield DataTable[Text](id="workers", cursor_type="row")
        yield RichLog(id="log", max_lines=200, markup=False, wrap=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in (("queues", QUEUE_COLUMNS), ("jobs", JOB_COLUMNS), ("workers", WORKER_COLUMNS)):
            self._table(name).add_columns(*columns)
        self._table("jobs").focus()
        # Restore the terminal also when a signal stops us, or the terminal is closed.
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._end, 128 + number)
        self.set_interval(self._every_s, self._refresh_if_live)
        self._refresh_tables()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        self.set_focus(field)  # at once, so that the field receives the next key

    def action_clear_filter(self) -> None:
        self._to_discard = []
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.set_focus(self._table("jobs"))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._words = event.value
        self._refresh_tables()

    def on_input_submitted(self) -> None:
        self.set_focus(self._table("jobs"))
        self._say("filtered; press esc to show all jobs")

    def action_select(self) -> None:
        job_id = self._under_cursor("jobs")
        if job_id is not None:
            self._selected ^= {job_id}
            self._refresh_tables()

    def action_retry(self) -> None:
        self._do_to_jobs(self._board.retry)

    def action_cancel(self) -> None:
        self._do_to_jobs(self._board.cancel)

    def action_discard(self) -> None:
        chosen = self._chosen()
        if len(chosen) > 1 and chosen != self._to_discard:
            self._to_discard = chosen
            self._say(f"permanently discard {len(chosen):,} jobs? press D again, or esc to keep them")
            return
        self._do_to_jobs(self._board.discard)

    def action_pause(self) -> None:
        queue = self._under_cursor("queues")
        if queue is not None:
            self._do(lambda: [self._board.pause_or_resume(queue)])

    def action_live(self) -> None:
        self._is_live = not self._is_live
        self._say("refreshing" if self._is_live else "paused; press l to resume")

    def action_keys(self) -> None:
        self._say(HELP)

    def action_leave(self) -> None:
        self._end(0)

    def _end(self, code: int) -> None:
        self.exit(code, return_code=code)

    def _do_to_jobs(self, act: Callable[[str], str]) -> None:
        self._to_discard = []
        chosen = self._chosen()
        self._selected.difference_update(chosen)
        self._do(lambda: [act(job_id) for job_id in chosen])

    def _chosen(self) -> list[str]:
        """The selected jobs that are shown, or else the one under the cursor."""
        shown = {key.value for key in self._table("jobs").rows}
        under = self._under_cursor("jobs")
        return sorted(self._selected & shown) or ([under] if under is not None else [])

    def _do(self, act: Callable[[], list[str]]) -> None:
        def run() -> None:
            try:
                sentences = act()
            except HoldfastError as problem:
                sentences = [str(problem)]
            for sentence in sentences:
                self.call_from_thread(self._say, sentence)
            self.call_from_thread(self._refresh_tables)

        self.run_worker(run, thread=True, group="acts", exit_on_error=True)

    def _refresh_if_live(self) -> None:
        if self._is_live:
            self._refresh_tables()

    def _refresh_tables(self) -> None:
        words = self._words

        def run() -> None:
            try:
                snapshot = self._board.snapshot(words)
            except HoldfastError as problem:
                self.call_from_thread(self._say, str(problem))
            else:
                self.call_from_thread(self._show, snapshot)

        self.run_worker(run, thread=True, group="refresh", exclusive=True)

    def _show(self, snapshot: Snapshot) -> None:
        totals = snapshot.status.totals
        numbers = " · ".join(f"{number:,} {state}" for state, number in totals.items() if number) or "no jobs yet"
        workers = worker_line(snapshot.status.workers) or "no worker is running"
        matching = f" · {len(snapshot.jobs):,} match '{snapshot.words}'" if snapshot.words else ""
        self.query_one("#head", Static).update(plain(f"{snapshot.status.location}\n{numbers} · {workers}{matching}"))
        self._fill("queues", {name: _queue_cells(name, states) for name, states in snapshot.status.queues.items()})
        self._fill("jobs", {job.id: self._job_cells(job_cells(job)) for job in snapshot.jobs})
        self._fill(
            "workers",
            {
                view.report.id: (
                    view.report.id[:8],
                    Text(view.state, style="red" if view.state is WorkerState.LOST else "green"),
                    f"{view.report.running}/{view.report.slots}",
                    f"{age(view.heard_at)} ago",
                )
                for view in snapshot.workers
            },
        )

    def _job_cells(self, cells: Cells) -> Cells:
        job_id, state, *rest = (str(cell) for cell in cells)
        mark = "*" if job_id in self._selected else " "
        return (mark, job_id, Text(state, style=COLOURS.get(JobState(state)) or ""), *rest)

    def _fill(self, name: str, rows: dict[str, Cells]) -> None:
        """Fill a table. The cursor stays on its row."""
        table = self._table(name)
        under = self._under_cursor(name)
        table.clear()
        for key, cells in rows.items():
            table.add_row(*(cell if isinstance(cell, Text) else Text(one_line(cell)) for cell in cells), key=key)
        if under in rows:
            table.move_cursor(row=list(rows).index(under), animate=False)

    def _under_cursor(self, name: str) -> str | None:
        table = self._table(name)
        if not table.row_count or not table.is_valid_coordinate(table.cursor_coordinate):
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _table(self, name: str) -> "DataTable[Text]":
        return cast("DataTable[Text]", self.query_one(f"#{name}", DataTable))

    def _say(self, sentence: str) -> None:
        self.query_one("#log", RichLog).write(one_line(sentence))


def _queue_cells(name: str, states: Mapping[str, int | bool]) -> Cells:
    waiting = states[JobState.PENDING] + states[JobState.SCHEDULED] + states[JobState.BLOCKED]
    shown = (waiting, states[JobState.PROCESSING], states[JobState.FAILED], states[JobState.DEAD])
    return (f"{name} (paused)" if states["paused"] else name, *(f"{number:,}" if number else "–" for number in shown))
