"""RSA keys are made once a process: each test begins with the first of them again."""

import itertools

import pytest

from fedpower.federation import certificates, kits

_new_key = certificates.new_key
_made: list[object] = []


def _key(place: int) -> object:
    """Return the key of a place: a real one as users have, and another than those before it."""
    while len(_made) <= place:
        _made.append(_new_key())
    return _made[place]


@pytest.fixture(autouse=True)
def _keys_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes a tenth of a second, and a study of three silos has six."""
    places = itertools.count()
    for module in (certificates, kits):
        monkeypatch.setattr(module, "new_key", lambda: _key(next(places)))
