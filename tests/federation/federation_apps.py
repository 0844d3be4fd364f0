"""What the fault tests load into FLARE in place of the product's classes: the same, held up at will.

Noise is seeded, so that runs can be compared bit for bit. Files in a party's folder hold it up:

- ``before-N``, ``after-N`` (a silo): wait before, or after, the answer to round N is made;
- ``between-N`` (the coordinator): wait after round N is closed and written down;
- ``full`` (a silo): its disk takes no more;
- ``replay-N`` (the coordinator): ask round N's questions once more when the round after it closes;
- ``junk`` (the coordinator): send bytes that are no question.

A party that waits leaves ``reached-…``; it goes on when the file is gone.
"""

import hashlib
import json
import os
import resource
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

from fedpower.engines.flare import KEY, TASK
from fedpower.federation.apps import StudyController, StudySilo
from fedpower.federation.job_check import JobCheck
from nvflare.apis.controller_spec import SendOrder, Task
from nvflare.apis.shareable import Shareable

from fedpower.federation import environment, policy
from fedpower.federation.silo_file import read_silo
from fedpower.federation.silo_node import open_silo
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.messages import encode

WAIT_S = 120.0


class NoiseByRound:
    """Seeded noise that depends on the silo and the round alone, so that a restart does not show."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.begin(0)

    def begin(self, number: int) -> None:
        digest = hashlib.sha256(f"{self._name} {number}".encode()).digest()
        self._source = SeededNoiseForExperiments(int.from_bytes(digest[:4]))

    def words(self, n):
        return self._source.words(n)


class ByRound:
    """A silo whose noise begins anew with every question."""

    def __init__(self, silo, noise: NoiseByRound) -> None:
        self._silo = silo
        self._noise = noise

    def answer(self, question):
        self._noise.begin(question.round)
        return self._silo.answer(question)


def hold(folder: Path, what: str) -> None:
    """Wait while the file is there, and say so."""
    mark, ends = folder / what, time.monotonic() + WAIT_S
    if mark.exists():
        (folder / f"reached-{what}").touch()
        while mark.exists() and time.monotonic() < ends:
            time.sleep(0.02)


@contextmanager
def full_disk():
    """Let no file of this process grow."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


class Held:
    def __init__(self, silo, folder: Path) -> None:
        self._silo = silo
        self._folder = folder

    def answer(self, question):
        hold(self._folder, f"before-{question.round}")
        with full_disk() if (self._folder / "full").exists() else nullcontext():
            answer = self._silo.answer(question)
        hold(self._folder, f"after-{question.round}")
        with (self._folder / "sent").open("a") as file:
            digest = hashlib.sha256(encode(answer)).hexdigest()
            file.write(f"{question.round} {answer.body.kind} {digest}\n")
        return answer


class HeldSilo(StudySilo):
    @contextmanager
    def _opened(self):
        own = read_silo(Path(os.environ[environment.SILO]))
        noise = NoiseByRound(own.name)
        checked = os.environ.get(environment.ROWS, "")
        with open_silo(self._study(), own, noise=noise, checked=checked) as node:
            yield Held(ByRound(node.silo, noise), own.path.parent)


class HeldJobCheck(JobCheck):
    """Lets in jobs that name the class above in place of the product's."""

    def deploy(self, *args, **options):
        policy.EXECUTOR = "federation_apps.HeldSilo"
        return super().deploy(*args, **options)


class HeldController(StudyController):
    def __init__(self, run: str) -> None:
        super().__init__(run)
        self._folder = Path(os.environ[environment.RUNS]).parent
        self._asked = {}
        self._again = []

    def _ask(self, question, fl_ctx):
        self._asked.setdefault(question.round, {})[question.silo] = question
        return super()._ask(question, fl_ctx)

    def _closed(self, closed, fl_ctx):
        number = closed.number
        hold(self._folder, f"between-{number}")
        if (self._folder / f"replay-{number - 1}").exists():
            self._replay(number - 1, fl_ctx)
        if (self._folder / "junk").exists():
            self._junk(fl_ctx)

    def _replay(self, number, fl_ctx):
        """Ask an old round's questions again; keep digests of what comes back."""
        ask = super()._ask
        asked = [ask(question, fl_ctx) for question in self._asked[number].values()]
        digests = {}
        for _ in filter(None, asked):
            name, result = self._arrived.get(timeout=WAIT_S)
            digests[name] = hashlib.sha256(result[KEY]).hexdigest()
        (self._folder / "replayed.json").write_text(json.dumps(digests))

    def _junk(self, fl_ctx):
        """Send what is no question of the study; keep what comes back."""
        junk = {
            "oversized": b"x" * 10_000_000,
            "malformed": b"fedpower1\n" + b"\0" * 100,
            "not bytes": "rows, please",
        }
        reported = {}
        for name, content in junk.items():
            carried = Shareable()
            carried[KEY] = content
            task = Task(name=TASK, data=carried, result_received_cb=self._received)
            self.send(task, fl_ctx, targets=["north"], send_order=SendOrder.ANY)
            _, result = self._arrived.get(timeout=WAIT_S)
            reported[name] = [str(result.get_return_code()), KEY in result]
        (self._folder / "junk.json").write_text(json.dumps(reported))
