"""A silo's inbox: studies that were proposed to it, and what its operator or its standing rules decided."""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

import fedpower
from fedpower.exceptions import FedpowerError, InputError, LedgerError, ProtocolError
from fedpower.federation.silo_file import SiloFile
from fedpower.federation.study_file import Federation, StudyFile, proposed_study, read_study
from fedpower.files import write_whole
from fedpower.privacy.ledger import Decision, Ledger
from fedpower.protocol.messages import MOST_SIGNATURES, Propose, decode_as, encode
from fedpower.protocol.receiving import cleaned
from fedpower.protocol.secure import is_signed
from fedpower.protocol.study import worst_epsilon

MOST_WAITING, _MOST_DECIDED = 100, 20  # studies in an inbox: a silo that restarts continues with them
_LONGEST_REASON = 300
_KEY, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")
# What names a study by its hash: a study may have another's hash, or its beginning, as its name
_HASH = re.compile(r"[0-9a-f]{12,64}")


class Inbox:
    """The inbox of one silo; `node approve` opens it next to the running vault."""

    def __init__(self, federation: Federation, own: SiloFile, ledger: Ledger) -> None:
        self._federation, self._own, self._ledger = federation, own, ledger
        self._identity = own.identity()
        self.folder = own.inbox
        self._tidy()

    def opened(self, proposal: Propose) -> tuple[StudyFile, dict[str, str]]:
        """Return a study of this federation, and all signatures of it that this silo has."""
        study = proposed_study(proposal.content)
        self._federation.check(study)
        if self._own.name not in study.silos:
            must = f"a study must name silo {self._own.name!r} to be proposed to it"
            raise ProtocolError(f"{must}, got {', '.join(study.silos)}")
        signatures = signed_by(study, proposal.signatures)
        if study in self:  # which its operator may have signed, or got signed
            signatures |= self.signatures(study)
            wanted = () if self._own.approve is None else self._own.approve.signed_by
            signatures = dict(sorted(signatures.items(), key=lambda one: one[0] in wanted)[-MOST_SIGNATURES:])
        return study, signatures

    def add(self, proposal: Propose) -> StudyFile:
        """Return a study that arrived, and keep it."""
        study, signatures = self.opened(proposal)
        self.keep(study, signatures)
        return study

    def keep(self, study: StudyFile, signatures: dict[str, str]) -> None:
        """Keep a study until it is decided; the oldest ones make room for it."""
        self.folder.mkdir(exist_ok=True, mode=0o700)
        kept = Propose(content=study.content, signatures=signatures)
        write_whole(self._place(study.digest), encode(kept), private=True)
        waiting = self._undecided()
        decided = [path for path in self._paths() if path not in waiting]
        for path in (*waiting[MOST_WAITING:], *decided[_MOST_DECIDED:]):
            path.unlink(missing_ok=True)

    @property
    def n_waiting(self) -> int:
        return len(self._undecided())

    def waiting(self) -> list[StudyFile]:
        """Return the studies without a decision, the one that arrived last first."""
        return list(_readable(self._undecided()))

    def find(self, word: str) -> StudyFile:
        """Return the one study with this name, or with a hash that begins so."""
        studies = _readable(self._paths())
        by_hash = _HASH.fullmatch(word)
        found = [one for one in studies if (one.digest.startswith(word) if by_hash else one.name == word)]
        if len(found) != 1:
            which = ", ".join(one.digest[:12] for one in found)
            must = "STUDY must be a file, or the name or hash of one study in the silo's inbox"
            raise InputError(f"{must}, got {word!r}" + (f", which several have: {which}" if found else ""))
        return found[0]

    def __contains__(self, study: StudyFile) -> bool:
        return self._place(study.digest).exists()

    def study(self, digest: str) -> StudyFile:
        if not self._place(digest).exists():
            raise ProtocolError("a study must be in this silo's inbox, got none; run it again to propose it")
        return _read(self._place(digest))

    def proposal(self, study: StudyFile) -> Propose:
        return decode_as(self._place(study.digest).read_bytes(), Propose)

    def signatures(self, study: StudyFile) -> dict[str, str]:
        return self.proposal(study).signatures

    def decision(self, study: str) -> Decision | None:
        """Return what holds about a study, by its hash; an approval holds for one version of the rows.

        Decisions that are not signed with this silo's key do not count.
        """
        made = [one for one in self._ledger.decisions() if study in (one.study, one.asked_as)]
        last = next((one for one in reversed(made) if self._is_own(one)), None)
        if last is None or last.stops_rules:
            return None
        outdated = last.approved and last.data_version != self._own.data.version
        return None if outdated else last

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
            charged_as=terms.ledger_name,
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
        if any(self.objections(study, self.signatures(study))):
            return None
        return self.decide(study, approved=True, by="rule", reason=f"standing rules of {self._own.path.name}")

    def stop_rules(self, study: StudyFile) -> None:
        """Record that the rows do not fit a study that rules approved, so no rule approves for now.

        Who may have studies approved by rules would else learn of rows, at no cost, by which studies fit.
        """
        self.decide(study, approved=False, by="rule", reason="the rows could not be read for it")

    def objections(self, study: StudyFile, signed_by: Collection[str]) -> Iterator[str]:
        """Yield why the standing rules do not approve a study: nothing where they do."""
        last = {made.study: made for made in self._ledger.decisions() if self._is_own(made)}
        for made in last.values():
            if made.stops_rules:
                yield f"they wait until you decide about study {made.name}, for which no rows could be read"
        yield from self._own.objections(study, signed_by, self._ledger.caps()[-1].delta)

    def _tidy(self) -> None:
        """Forget studies that have another hash in this version of fedpower; they are proposed again."""
        kept_by = self.folder / "version"
        if not self.folder.exists() or (kept_by.exists() and kept_by.read_text() == fedpower.__version__):
            return
        for path in self._paths():
            try:
                same = _read(path).digest == path.stem
            except FedpowerError:
                same = False
            if not same:
                path.unlink()
        write_whole(kept_by, fedpower.__version__, private=True)

    def _is_own(self, made: Decision) -> bool:
        return made.key == self._identity.public and _is_signed(made.key, made.signature, made.signed)

    def _place(self, digest: str) -> Path:
        return self.folder / f"{digest}.study"

    def _paths(self) -> list[Path]:
        found = []
        for path in self.folder.glob("*.study"):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _undecided(self) -> list[Path]:
        return [path for path in self._paths() if self.decision(path.stem) is None]


def _readable(paths: Iterable[Path]) -> Iterator[StudyFile]:
    for path in paths:
        with contextlib.suppress(FedpowerError, OSError):  # damaged, or removed in the meantime
            yield _read(path)


def _read(path: Path) -> StudyFile:
    return proposed_study(decode_as(path.read_bytes(), Propose).content)


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
    """Return whether a signature holds; key and signature have one spelling each."""
    if not (_KEY.fullmatch(key) and _SIGNATURE.fullmatch(signature)):
        return False
    return is_signed(bytes.fromhex(key), bytes.fromhex(signature), content)


def proposal_in(study: Path) -> Propose:
    """Return the study in a file, with the signatures next to it."""
    return Propose(content=read_study(study).content, signatures=read_signatures(signatures_of(study)))


def read_signatures(path: Path) -> dict[str, str]:
    """Return the signatures in a file next to a study; none where there is no file."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must hold signatures made by `fedpower study sign`, got {error}") from None
