"""A silo's inbox: studies that were proposed to it, and what its operator or its standing rules decided."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from fedpower import toml
from fedpower.exceptions import InputError, LedgerError, ProtocolError
from fedpower.federation.federation_file import Federation
from fedpower.federation.silo_file import SiloFile
from fedpower.federation.study_file import StudyFile, read_study
from fedpower.files import write_whole
from fedpower.privacy.ledger import Decision, Ledger
from fedpower.protocol.receiving import MOST_STUDY_BYTES, cleaned
from fedpower.protocol.secure import is_signed
from fedpower.protocol.study import worst_epsilon

MOST_WAITING = 100
_KEPT = 20  # of studies that were decided: a silo that restarts continues with them
_LONGEST_REASON = 300


class Inbox:
    """The inbox of one silo; `node approve` opens it next to the running vault."""

    def __init__(self, federation: Federation, own: SiloFile, ledger: Ledger) -> None:
        self._federation, self._own, self._ledger = federation, own, ledger
        self._identity = own.identity()
        self.folder = own.inbox

    def add(self, text: str, signatures: Mapping[str, str]) -> StudyFile:
        """Return a study that arrived, kept until it is decided; nothing else is done with it."""
        self.folder.mkdir(exist_ok=True, mode=0o700)
        if len(text) > MOST_STUDY_BYTES:
            raise ProtocolError(
                f"a study file must have at most {MOST_STUDY_BYTES} letters, got a longer one"
            )
        arriving = self.folder / f"arriving-{os.getpid()}.toml"
        write_whole(arriving, text, private=True)
        try:
            study = read_study(arriving)
            self._federation.check(study)
            place = self.folder / f"{study.digest}.toml"
            if not place.exists():
                self._make_room()
            arriving.replace(place)
        finally:
            arriving.unlink(missing_ok=True)
        valid = signed_by(study, signatures)
        write_whole(signatures_of(place), toml.to_toml(valid), private=True)
        return study

    def waiting(self) -> list[StudyFile]:
        """Return the studies without a decision, the one that arrived last first."""
        # The vault asks every few seconds, so files of decided studies are not read. The hashes of others may
        # have changed with the version of fedpower.
        left = [path for path in self._paths() if self.decision(path.stem) is None]
        return [study for study in _readable(left) if self.decision(study.digest) is None]

    def find(self, word: str) -> StudyFile:
        """Return the one study with this name, or with a hash that begins so."""
        found = [one for one in _readable(self._paths()) if one.name == word or one.digest.startswith(word)]
        if len(found) != 1:
            which = ", ".join(one.digest[:12] for one in found)
            must = "STUDY must be a file, or the name or hash of one study in the silo's inbox"
            raise InputError(f"{must}, got {word!r}" + (f", which several have: {which}" if found else ""))
        return found[0]

    def signatures(self, study: StudyFile) -> dict[str, str]:
        return read_signatures(signatures_of(self.folder / f"{study.digest}.toml"))

    def decision(self, study: str) -> Decision | None:
        """Return what holds about a study, by its hash; an approval holds for one version of the rows."""
        found = [one for one in self._ledger.decisions() if study in (one.study, one.asked_as)]
        if not found or (found[-1].approved and found[-1].data_version != self._own.data.version):
            return None
        return found[-1]

    def study(self, digest: str) -> StudyFile:
        path = self.folder / f"{digest}.toml"
        if not path.exists():
            raise ProtocolError("a study must be in this silo's inbox, got none; run it again to propose it")
        return read_study(path)

    def decide(
        self,
        study: StudyFile,
        *,
        approved: bool,
        reason: str = "",
        by: Literal["operator", "rule"] = "operator",
    ) -> Decision:
        """Record a decision in the ledger, signed with the silo's key."""
        if not (approved or reason) or cleaned(reason) != reason or len(reason) > _LONGEST_REASON:
            raise InputError(f"a reason must be one line of 1 to {_LONGEST_REASON} letters, got another text")
        terms, _, _ = study.terms()
        made = Decision(
            time=datetime.now(UTC),
            study=study.digest,
            asked_as=terms.digest,
            name=study.name,
            approved=approved,
            reason=reason,
            by=by,
            epsilon=worst_epsilon(terms) if terms.is_private else None,
            delta=terms.delta if terms.is_private else None,
            data_version=self._own.data.version,
            key=self._identity.public,
        )
        made = msgspec.structs.replace(made, signature=self._identity.sign(made.signed).hex())
        self._ledger.decide(made)
        return made

    def by_rule(self, study: StudyFile) -> Decision | None:
        """Return the approval by the standing rules, recorded as such; nothing where they do not approve."""
        if any(self._own.objections(study, self.signatures(study))):
            return None
        return self.decide(study, approved=True, by="rule", reason=f"standing rules of {self._own.path.name}")

    def _paths(self) -> list[Path]:
        found = [path for path in self.folder.glob("*.toml") if not path.stem.startswith("arriving")]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)

    def _make_room(self) -> None:
        """Forget the oldest studies that were decided; refuse more than so many that wait."""
        paths = self._paths()
        decided = [path for path in paths if self.decision(path.stem) is not None]
        if len(paths) - len(decided) >= MOST_WAITING:
            raise ProtocolError(f"a silo must have at most {MOST_WAITING} studies that wait, got one more")
        for path in decided[_KEPT:]:
            path.unlink()
            signatures_of(path).unlink(missing_ok=True)


def _readable(paths: Iterable[Path]) -> Iterator[StudyFile]:
    """Yield the studies that this version of fedpower can read."""
    for path in paths:
        with suppress(InputError):
            yield read_study(path)


def check_decisions(ledger: Ledger) -> None:
    """Refuse decisions that are not signed with the key that they name."""
    for made in ledger.decisions():
        if not _is_signed(made.key, made.signature, made.signed):
            raise LedgerError(
                f"the decision about study {made.name!r} must be signed with its key but is not"
            )


def signatures_of(study: Path) -> Path:
    """Return the file with the signatures of a study file, next to it."""
    return study.with_suffix(".signatures")


def message_to_sign(study: StudyFile) -> bytes:
    return f"fedpower study {study.digest}".encode()


def signed_by(study: StudyFile, signatures: Mapping[str, str]) -> dict[str, str]:
    """Return those signatures, by public key, that are of this study."""
    content = message_to_sign(study)
    return {key: signature for key, signature in signatures.items() if _is_signed(key, signature, content)}


def _is_signed(key: str, signature: str, content: bytes) -> bool:
    """Return whether a signature holds; both are hexadecimal digits, or else it does not."""
    try:
        return is_signed(bytes.fromhex(key), bytes.fromhex(signature), content)
    except ValueError:
        return False


def read_signatures(path: Path) -> dict[str, str]:
    """Return the signatures in a file next to a study; none where there is no file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must hold signatures made by `fedpower study sign`, got {error}") from None
