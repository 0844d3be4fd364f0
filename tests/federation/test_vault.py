"""The vault over a socket: a question of the study is answered, anything else gets nothing."""

import logging
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec import structs
from studies import kit_of, question, write_silo, write_study

from fedpower.errors import InputError
from fedpower.federation import vault as vault_module
from fedpower.federation.isolation import available, separation
from fedpower.federation.silo_file import Data, OpenSilo, open_silo
from fedpower.federation.study_file import StudyFile
from fedpower.federation.vault import Vault, node_settings, run_silo
from fedpower.protocol.messages import (
    AskSteps,
    Enrolment,
    Message,
    QueryAnswer,
    Refusal,
    decode,
    encode,
    read_only,
)
from fedpower.protocol.receiving import most_question_bytes


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    return write_study(tmp_path)


@pytest.fixture
def node(study: StudyFile, tmp_path: Path) -> Iterator[OpenSilo]:
    with open_silo(study, write_silo(tmp_path)) as opened:
        yield opened


def n_charged(node: OpenSilo) -> int:
    assert node.ledger is not None
    return node.ledger.spent().n_releases


@contextmanager
def served(vault: Vault) -> Iterator[Connection]:
    """Give the node's end of a connection that a vault answers in a thread of its own."""
    here, there = Pipe()
    thread = threading.Thread(target=vault.serve, args=(here,))
    thread.start()
    with there:
        yield there
    thread.join(30)
    assert not thread.is_alive()
    assert here.closed, "the vault leaves a connection open"


def asked(node: Connection, content: bytes) -> bytes:
    node.send_bytes(content)
    assert node.poll(30)
    return node.recv_bytes()


def test_a_question_is_answered_as_the_silo_does_and_what_is_none_gets_an_empty_answer(
    node: OpenSilo, study: StudyFile, caplog: pytest.LogCaptureFixture
) -> None:
    content = encode(question(study))
    turned = bytes([*content[:40], content[40] ^ 1, *content[41:]])
    spoilt = [b"", content[:-1], turned, content + content, bytes(100), b"GET / HTTP/1.1\r\n\r\n"]
    with caplog.at_level(logging.ERROR), served(Vault(node.silo, study)) as stream:
        for other in spoilt:
            assert asked(stream, other) == b""
        assert n_charged(node) == 0
        answer = asked(stream, content)
    assert caplog.text.count("refused what is no question of this study") == len(spoilt)
    assert answer == encode(node.silo.answer(question(study)))
    assert isinstance(decode(answer).body, QueryAnswer)
    assert n_charged(node) == 1


def test_a_question_that_is_not_for_this_silo_is_refused_logged_and_charged_nothing(
    node: OpenSilo, study: StudyFile, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does an answer say anything about rows that cannot be read."""
    changes: list[dict[str, object]] = [
        {"study": "0" * 64},
        {"silo": "south"},
        {"body": Enrolment(n_rows=1, n_features=1)},
        {"body": Refusal(reason="no")},
        {"body": AskSteps(basis=read_only(np.full((5, 2), 9.0)), n_local_steps=1)},
    ]
    vault = Vault(node.silo, study)
    with caplog.at_level(logging.WARNING):
        for change in changes:
            answer = decode(vault.answer(encode(question(study, **change))))
            assert isinstance(answer.body, Refusal)
            assert answer.silo == "north"
        assert n_charged(node) == 0
        node.ledger.close()  # type: ignore[union-attr]
        answer = decode(vault.answer(encode(question(study))))
    assert answer.body == Refusal(reason="the silo could not answer; its operator's log says why")
    assert caplog.text.count("refused round 0") == len(changes) + 1


def test_a_frame_that_is_too_large_or_cut_off_ends_the_connection_and_charges_nothing(
    node: OpenSilo, study: StudyFile, caplog: pytest.LogCaptureFixture
) -> None:
    most = most_question_bytes(study.terms()[0])
    with caplog.at_level(logging.ERROR), served(Vault(node.silo, study)) as stream:
        os.write(stream.fileno(), struct.pack("!i", most + 1))  # refused before the rest is read
        with pytest.raises(EOFError):
            stream.recv_bytes()
    assert "the connection to the node ended: bad message length" in caplog.text
    with served(Vault(node.silo, study)) as stream:
        assert asked(stream, bytes(most)) == b"", "the largest that is read"
    for content in (b"", b"\0\0\0", struct.pack("!i", 100) + b"half"):
        with served(Vault(node.silo, study)) as stream:
            os.write(stream.fileno(), content)
    assert n_charged(node) == 0


def test_one_question_is_answered_at_a_time(study: StudyFile) -> None:
    class Slow:
        busy = 0
        most = 0

        def answer(self, message: Message) -> Message:
            self.busy += 1
            self.most = max(self.most, self.busy)
            threading.Event().wait(0.02)
            self.busy -= 1
            return structs.replace(message, body=Refusal(reason="slow"))

    silo = Slow()
    vault = Vault(silo, study)
    threads = [threading.Thread(target=vault.answer, args=(encode(question(study)),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert silo.most == 1


def test_a_node_gets_what_it_needs_and_nothing_of_the_vault_s(
    study: StudyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = node_settings(kit_of(study, "north", tmp_path / "kits"), vault=7)
    assert settings.confined == available()
    start = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(vault_module, "start_process", start)
    monkeypatch.setenv("CLINIC_DB_PASSWORD", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("https_proxy", "http://proxy")
    with pytest.raises(InterruptedError):
        run_silo(Vault(Mock(), study), settings, write_silo(tmp_path), say=print)
    _, environment = start.call_args.args
    assert "secret" not in environment.values()
    assert environment["https_proxy"] == "http://proxy"
    assert not {"HOME", "USER"} & set(environment)
    uids = ((1001, "separate users"), (1000, "NOT SEPARATE"), (0, "NOT SEPARATE"))
    assert all(separation(uid, 1000).startswith(words) for uid, words in uids)


def test_a_second_vault_does_not_take_the_socket_of_the_first(tmp_path: Path) -> None:
    place = tmp_path / "vault.sock"
    first = vault_module._listener(place)
    first.listen(1)
    with pytest.raises(InputError, match="got another that does already"):
        vault_module._listener(place)
    assert place.is_socket()
    first.close()
    vault_module._listener(place).close()  # one that nobody listens at any more is replaced
    (tmp_path / "rows.csv").touch()
    for other in ("rows.csv", "x" * 120):
        with pytest.raises(InputError, match="name a new file with --socket"):
            vault_module._listener(tmp_path / other)


def test_parts_that_are_links_to_files_elsewhere_are_secrets_too(tmp_path: Path) -> None:
    own, elsewhere = write_silo(tmp_path), tmp_path / "elsewhere.csv"
    elsewhere.touch()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part1.csv").symlink_to(elsewhere)
    assert elsewhere in structs.replace(own, data=Data(path="parts")).secrets()
