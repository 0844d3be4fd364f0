"""What the fault tests start in place of `fedpower`: the same parties, held up at will.

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
import queue
import resource
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import fedpower.cli
from fedpower.federation import coordinator
from fedpower.federation.links import ASK
from fedpower.federation.silo_file import open_silo
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.messages import encode
from fedpower.protocol.receiving import most_question_bytes

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
    """A silo whose noise begins again with every question."""

    def __init__(self, silo, noise: NoiseByRound) -> None:
        self._silo = silo
        self._noise = noise

    def answer(self, question):
        self._noise.begin(question.round)
        return self._silo.answer(question)


def hold(folder: Path, what: str) -> None:
    mark, ends = folder / what, time.monotonic() + WAIT_S
    if mark.exists():
        (folder / f"reached-{what}").touch()
        while mark.exists() and time.monotonic() < ends:
            time.sleep(0.02)


class Held:
    def __init__(self, silo, folder: Path) -> None:
        self._silo = silo
        self._folder = folder

    def answer(self, question):
        hold(self._folder, f"before-{question.round}")
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        if (self._folder / "full").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, usual[1]))
        answer = self._silo.answer(question)
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        hold(self._folder, f"after-{question.round}")
        with (self._folder / "sent").open("a") as file:
            digest = hashlib.sha256(encode(answer)).hexdigest()
            file.write(f"{question.round} {answer.body.kind} {digest}\n")
        return answer


@contextmanager
def open_held_silo(study_file, silo_file):
    noise = NoiseByRound(silo_file.name)
    with open_silo(study_file, silo_file, noise=noise) as node:
        yield replace(node, silo=Held(ByRound(node.silo, noise), silo_file.path.parent))


class HeldQuestions(coordinator.Questions):
    """Remembers what was asked, and keeps what comes back to junk."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.asked = {}
        self.junk_numbers = set()
        self.back = queue.Queue()
        self.returns = queue.Queue()

    def send(self, question):
        self.asked.setdefault(question.round, {})[question.silo] = question
        super().send(question)

    def take(self, silo, number, content):
        if number in self.junk_numbers:
            self.back.put((number, content))
        else:
            super().take(silo, number, content)

    def resend(self, silo):
        self.returns.put(silo)
        super().resend(silo)

    def replay(self, number: int) -> dict[str, str]:
        """Ask an old round's questions again; return digests of what comes back, by silo."""
        again = list(self.asked[number].values())
        for question in again:
            super().send(question)
        arrived = [self._arrived.get(timeout=WAIT_S) for _ in again]
        return {name: hashlib.sha256(content).hexdigest() for name, content in arrived}

    def send_junk(self, silo: str) -> dict[str, int | None]:
        """Send what is no question of the study; return how many bytes came back, by what was sent."""
        junk = {
            "malformed": b"fedpower1\n" + b"\0" * 100,
            "empty": b"",
            "oversized": b"x" * (2 * most_question_bytes(self._study)),
        }
        sizes = {}
        for number, (name, content) in enumerate(junk.items(), start=10**6):
            self.junk_numbers.add(number)
            self.returns = queue.Queue()
            assert self._links.send(silo, ASK, number, content)
            if name == "oversized":
                while self.returns.get(timeout=WAIT_S) != silo:
                    pass
                sizes[name] = None if self.back.empty() else len(self.back.get()[1])
            else:
                sizes[name] = len(self.back.get(timeout=WAIT_S)[1])
        return sizes


class HeldRun(coordinator.RunThread):
    def _drive(self, made):
        kit, append = self._kit.folder, made.coordinator._on_closed

        def closed(recorded):
            append(recorded)
            number = recorded.number
            hold(kit, f"between-{number}")
            if (kit / f"replay-{number - 1}").exists():
                (kit / "replayed.json").write_text(json.dumps(self.questions.replay(number - 1)))
            if (kit / "junk").exists():
                (kit / "junk").unlink()
                (kit / "junk.json").write_text(json.dumps(self.questions.send_junk("north")))

        made.coordinator._on_closed = closed
        super()._drive(made)


def main() -> None:
    from fedpower.cli import node

    node.open_silo = open_held_silo
    coordinator.Questions, coordinator.RunThread = HeldQuestions, HeldRun
    fedpower.cli.main()


if __name__ == "__main__":
    main()
