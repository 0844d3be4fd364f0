"""From what a user calls silos to named sources of rows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from fedpower.errors import InputError, is_showable
from fedpower.rows.networks import NetworkSource, NetworkUnit, open_network, require_same_nodes
from fedpower.rows.opening import name_of_silo, open_source, rows_at
from fedpower.rows.source import RowSource
from fedpower.rows.units import by_unit


def named_sources(
    silos: Any,
    unit: str | None = None,
    rows_per_unit: int = 1,
    *,
    network: NetworkUnit | None = None,
    edge_weight: float | None = None,
) -> dict[str, RowSource]:
    """Return the silos' sources by name: given names, or a file's, or its number."""
    items = named_silos(silos)
    if network is not None:
        networks = {
            name: open_network(silo, unit=network, name=said, edge_weight=edge_weight)
            for name, (silo, said) in items.items()
        }
        require_same_nodes(networks.values())
        return dict[str, RowSource](networks)
    odd = [silo.name for silo, _ in items.values() if isinstance(silo, NetworkSource)]
    if odd:
        raise InputError(
            "{source} must be rows of a table, got a network; give {network:edge} or {network:row}",
            source=odd[0],
        )
    sources = {name: open_source(silo, name=said) for name, (silo, said) in items.items()}
    if unit is None:
        return sources
    return {name: by_unit(source, unit, rows_per_unit) for name, source in sources.items()}


def named_silos(silos: Any) -> dict[str, tuple[Any, str | None]]:
    """Return what was given for each silo by its name, and what sentences call it unless by itself."""
    if isinstance(silos, Mapping):
        items = [(str(name), silo) for name, silo in silos.items()]
    elif _is_path(silos) or _is_table(silos) or not isinstance(silos, Iterable):
        raise InputError(
            f"silos must be a list or a mapping of data, got {type(silos).__name__}; "
            "put a single silo into a list"
        )
    else:
        items = [(_name(silo, place), silo) for place, silo in enumerate(silos, start=1)]
    if not items:
        raise InputError("silos must hold at least one silo, got none; give the data of each")
    for name, _ in items:
        if not is_showable(name):
            raise InputError(
                "a silo's name must hold no control characters, got {name!a}; rename it, or {silo_names}",
                name=name,
            )
    twice = sorted(name for name, count in Counter(name for name, _ in items).items() if count > 1)
    if twice:
        raise InputError(
            "silos must have different names, got {name!r} more than once; {silo_names}", name=twice[0]
        )
    _require_own_rows(items)
    return {name: (silo, None if _names_itself(silo) else f"silo {name!r}") for name, silo in items}


def _require_own_rows(items: list[tuple[str, Any]]) -> None:
    """Refuse the same rows under two names: each row would count twice."""
    seen: dict[object, str] = {}
    for name, silo in items:
        for rows in rows_at(silo) or {str(silo)} if _is_path(silo) else {id(silo)}:
            if rows in seen:
                what = f"{silo}" if _is_path(silo) else f"the same {type(silo).__name__}"
                raise InputError(
                    f"each silo must have rows of its own, got {what} for both {seen[rows]!r} and "
                    f"{name!r}; give the rows of every silo once"
                )
            seen[rows] = name


def _name(silo: Any, place: int) -> str:
    return name_of_silo(silo) if _is_path(silo) else f"silo-{place}"


def _names_itself(silo: Any) -> bool:
    return _is_path(silo) or callable(getattr(silo, "blocks", None))


def _is_table(silos: Any) -> bool:
    """Whether what should be a list of silos is the rows of one: its items would be taken for silos."""
    return getattr(silos, "ndim", None) == 2 or hasattr(silos, "__arrow_c_stream__")


def _is_path(silo: Any) -> bool:
    return isinstance(silo, str | PathLike)
