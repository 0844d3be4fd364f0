"""What the fault tests start in place of `fedpower`: the same parties, held up at will.

Noise is seeded, so that runs can be compared bit for bit. Files in a party's folder hold it up:

- ``before-N``, ``after-N`` (a silo): wait before, or after, the answer to round N is made;
- ``between-N`` (the coordinator): wait after round N is closed and written down;
- ``full`` (a silo): its disk takes no more.

A party that waits leaves ``reached-…``; it goes on when the file is gone.
"""

import hashlib
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import fedpower.cli
from fedpower.federation import coordinator, vault
from fedpower.federation.silo_file import open_silo
from fedpower.privacy.noise import SeededNoiseForExperiments

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


def hold(folder: Path, what: str) -> None:
    mark, ends = folder / what, time.monotonic() + WAIT_S
    if mark.exists():
        (folder / f"reached-{what}").touch()
        while mark.exists() and time.monotonic() < ends:
            time.sleep(0.02)


class Held:
    """A silo held up at will, whose noise begins again with every question."""

    def __init__(self, silo, noise: NoiseByRound, folder: Path) -> None:
        self._silo, self._noise, self._folder = silo, noise, folder

    def __getattr__(self, name):
        return getattr(self._silo, name)

    def answer(self, question):
        hold(self._folder, f"before-{question.round}")
        self._noise.begin(question.round)
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        if (self._folder / "full").exists():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, usual[1]))
        answer = self._silo.answer(question)
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        hold(self._folder, f"after-{question.round}")
        return answer


@contextmanager
def open_held_silo(study_file, silo_file):
    noise = NoiseByRound(silo_file.name)
    with open_silo(study_file, silo_file, noise=noise) as silo:
        yield Held(silo, noise, silo_file.path.parent)


class HeldRun(coordinator.RunThread):
    def _drive(self, made):
        append = made.coordinator._on_closed

        def closed(recorded):
            append(recorded)
            hold(self.folder.parents[1], f"between-{recorded.number}")

        made.coordinator._on_closed = closed
        super()._drive(made)


def main() -> None:
    vault.open_silo = open_held_silo
    coordinator.RunThread = HeldRun
    fedpower.cli.main()


if __name__ == "__main__":
    main()
