"""The files of a finished reproduction: table, verdicts, captions and pictures."""

import json
from pathlib import Path
from typing import Any

from fedpower.report.atomic import write_whole
from paper.claims import Verdict, judge_all
from paper.figures import captions, draw_all
from paper.own_claims import own_claims
from paper.paper_claims import paper_claims
from paper.settings import Settings
from paper.store import versions
from paper.table import Table

RUNS, CLAIMS, CAPTIONS = "runs.csv", "claims.json", "captions.json"


def verdicts_on(settings: Settings, table: Table) -> list[Verdict]:
    """Return the verdicts on all claims that there are runs for, the paper's first."""
    return judge_all([*paper_claims(settings), *own_claims(settings)], table)


def claims_record(settings: Settings, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return claims.json."""
    return {
        "settings": settings.as_dict(),
        "versions": versions(),
        "claims": [verdict.as_dict() for verdict in verdicts],
    }


def write_outputs(
    folder: Path, settings: Settings, table: Table, verdicts: list[Verdict]
) -> list[Path]:
    """Return the files written to ``folder``: each whole or not at all, the same for the same runs."""
    reported = captions(settings, table)
    files: dict[str, str | bytes] = {
        RUNS: table.as_csv(),
        CLAIMS: _json(claims_record(settings, verdicts)),
        CAPTIONS: _json(reported),
        **draw_all(table, reported),
    }
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def _json(record: Any) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
