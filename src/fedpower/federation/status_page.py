"""A page on this machine that shows how a study stands, and the report of its result; it updates itself."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fedpower.exceptions import FedpowerError, InputError
from fedpower.federation.health import Server
from fedpower.federation.processes import only_one
from fedpower.federation.runner import CoordinatorLostError, CoordinatorSession, understood
from fedpower.federation.study_file import StudyFile
from fedpower.federation.study_status import in_words, study_facts
from fedpower.report.page import rendered, result_page
from fedpower.report.result import read_result

_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the pages' own policies say the rest
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOST = (
    "The coordinator does not answer. This page shows how the study stood before, and goes on when the "
    "coordinator is back."
)


class StatusPage:
    """What the server answers, by path; it is asked of the coordinator again and again."""

    def __init__(self, study: StudyFile, last_run: Callable[[], str | None]) -> None:
        self._study, self._last_run = study, last_run
        self._facts: dict[str, Any] | None = None
        self._words: dict[str, Any] | None = None
        self._reported: str | None = None  # the run whose report there is
        self.contents = {"/": (_HTML, rendered("status.html", study=study).encode())}
        self._show("The coordinator has not answered so far.")

    def answer(self, path: str) -> tuple[int, str, bytes]:
        return (200, *self.contents[path]) if path in self.contents else (404, "", b"")

    def update(self, session: CoordinatorSession) -> bool:
        """Ask the coordinator how the study stands; return False, as there is always more to come."""
        problem = None
        try:
            last = self._last_run()
            with understood():
                facts = study_facts(self._study, session.status(last), last)
                self._facts, self._words = facts, in_words(facts)
            if facts["result"] not in (None, self._reported):
                self._report(session, facts["result"])
        except CoordinatorLostError:
            problem = _LOST
        except FedpowerError as error:
            problem = f"{error}."
        self._show(problem)
        return False

    def _show(self, problem: str | None) -> None:
        facts = self._facts
        report = facts is not None and facts["result"] is not None and facts["result"] == self._reported
        shown = {"facts": facts, "words": self._words, "problem": problem, "report": report}
        self.contents["/status.json"] = _JSON, msgspec.json.encode(shown)

    def _report(self, session: CoordinatorSession, run: str) -> None:
        """Fetch the result of a run, and make the page of its report from its numbers."""
        with tempfile.TemporaryDirectory() as folder:
            session.fetch(run, Path(folder))
            page = result_page(read_result(Path(folder)))
        self.contents["/report"] = _HTML, page.encode()
        self._reported = run


@contextmanager
def served(page: StatusPage, port: int, kit: Path) -> Iterator[str]:
    """Serve the only page of a kit, on this machine; give its address."""
    with ExitStack() as stack:
        # Two pages of one name would get each other's replies.
        stack.enter_context(only_one(kit, f"{kit} must have one page at a time, got another that is open"))
        try:
            server = stack.enter_context(Server(("127.0.0.1", port), page.answer, **_HEADERS))
        except OSError as error:
            problem = (error.strerror or str(error)).lower()
            raise InputError(f"--port must be a free port, got {port} ({problem})") from None
        stack.callback(server.shutdown)
        yield f"http://127.0.0.1:{server.server_address[1]}"
