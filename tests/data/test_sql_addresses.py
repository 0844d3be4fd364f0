"""Database URLs, the places of passwords, and that no sentence ever quotes one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_bad_data import refusal

from fedpower.rows.opening import open_query, open_source
from fedpower.rows.sql import Address, SqlQuery, conninfo, parse_address

SECRET = "pl4nted-pa55"  # noqa: S105
ROWS = "SELECT a FROM t"


def settings(url: str) -> dict[str, str]:
    address = parse_address(url)
    assert address.kind == "postgresql"
    return dict(address.settings)


def test_postgres_urls_give_libpq_its_settings_and_leave_the_rest_to_it() -> None:
    assert settings("postgresql://db.ward:6432/north") == {
        "host": "db.ward",
        "port": "6432",
        "dbname": "north",
    }
    assert settings("postgres://ann%40x@[::1]/n%20n?sslmode=verify-full") == {
        "host": "::1",
        "dbname": "n n",
        "user": "ann@x",
        "sslmode": "verify-full",
    }
    assert settings("postgresql://") == {}
    assert settings("postgresql://?service=north") == {"service": "north"}
    assert settings("postgresql:///n?host=/run/pg") == {"host": "/run/pg", "dbname": "n"}
    assert settings("postgresql://a:1,b/n")["host"] == "a,b"
    assert settings("postgresql://a:1,b/n")["port"] == "1,"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@host/north",
        f"postgresql://ann:{SECRET}@/north",
        f"postgresql://:{SECRET}@host",
        f"postgresql://host/north?password={SECRET}",
        f"postgresql://host/north?sslmode=require&PASSWORD={SECRET}",
        f"postgresql://host/north?sslpassword={SECRET}",
        f"postgresql://ann:12/{SECRET}@host/north",
        f"postgresql://ann:x/{SECRET}@host/north",
        f"postgresql://ann:12?{SECRET}=1@host/north",
        f"postgresql://ann:12#{SECRET}@host/north",
        f"postgresql://ann:a@{SECRET}@host/north",
        f"postgresql://host:{SECRET}/north",
        f"postgresql://host/north?{SECRET}=1",
        f"postgresql://host/north?{SECRET}",
        f"mysql://ann:{SECRET}@host/north",
        f"host=x password={SECRET}",
        f"sqlite://ann:{SECRET}@host",
    ],
)
def test_a_url_with_a_password_or_that_cannot_be_read_is_refused_and_never_quoted(url: str) -> None:
    message = refusal(lambda: SqlQuery(ROWS, url))
    assert SECRET not in message
    assert "host/north" not in message


@pytest.mark.slow
@given(st.text(min_size=3).filter(lambda text: not text.isdecimal()))
def test_whatever_follows_the_user_s_colon_is_refused_unread(text: str) -> None:
    assert SECRET not in refusal(lambda: SqlQuery(ROWS, f"postgresql://ann:{SECRET}{text}@host/north"))


def test_a_query_holds_no_password_and_shows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORTH_DB_PASSWORD", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    for place in ({"password_env": "NORTH_DB_PASSWORD"}, {"password_file": tmp_path / "secret"}):
        query = SqlQuery(ROWS, "postgresql://host/north", user="ann", **place)  # type: ignore[arg-type]
        assert query.password() == SECRET
        assert SECRET not in repr(query)
        assert SECRET not in str(vars(type(query)))
    assert SqlQuery(ROWS, "postgresql://host/north").password() is None


def test_the_place_of_a_password_must_hold_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    url = "postgresql://host/north"
    assert "the environment variable NO_SUCH must hold" in refusal(
        lambda: SqlQuery(ROWS, url, password_env="NO_SUCH").password()  # noqa: S106
    )
    missing = tmp_path / "none"
    assert f"the file {missing} must hold" in refusal(
        lambda: SqlQuery(ROWS, url, password_file=missing).password()
    )
    missing.write_text("\n")
    assert "got none there" in refusal(lambda: SqlQuery(ROWS, url, password_file=missing).password())
    both: Any = {"password_env": "A", "password_file": "b"}
    assert "got both" in refusal(lambda: SqlQuery(ROWS, url, **both))
    assert "must be named without user" in refusal(lambda: SqlQuery(ROWS, "sqlite:///a.db", user="u"))
    assert "given once" in refusal(lambda: SqlQuery(ROWS, "postgresql://ann@h/n", user="bob"))


def test_connection_strings_quote_whatever_a_setting_holds() -> None:
    server = Address(kind="postgresql", settings=(("host", "h"), ("connect_timeout", "3")))
    made = conninfo(server, "an n", "p'a\\s s' host='x")
    assert made.endswith(r"connect_timeout='3' user='an n' password='p\'a\\s s\' host=\'x'")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"query": ROWS}, 'must give database, got none; add database = "…"'),
        ({"database": "sqlite:///a.db"}, "must give query"),
        ({"query": ROWS, "database": 5}, "database of a query must be text, got int"),
        ({"query": "", "database": "sqlite:///a.db"}, "query of a query must be text, got none"),
        ({"query": "-- x", "database": "sqlite:///a.db"}, "must be a SELECT, got none"),
        ({"query": ROWS, "databse": "x"}, "got 'databse' (did you mean database?)"),
        ({"query": ROWS, "password": SECRET}, "must not hold a password, got one"),
    ],
)
def test_a_mapping_must_describe_a_query(data: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: open_query(data, name="[data] of north.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("query = ", "must be a TOML file in UTF-8, got one that cannot be parsed"),
        (f'query = "{ROWS}"', "must have a table [data] with query and database"),
        ("data = 5", "must have a table [data]"),
        (f'[data]\nquery = "{ROWS}"\npassword = "{SECRET}"', "must not hold a password"),
    ],
)
def test_a_file_must_have_a_table_of_data(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "north.toml"
    path.write_text(text)
    message = refusal(lambda: open_source(path))
    assert words in message
    assert str(path) in message
    assert SECRET not in message
