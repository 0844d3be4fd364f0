"""Workbooks with all digits of their numbers: openpyxl rounds them to sixteen."""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def write_xlsx(path: Path, **sheets: Iterable[Iterable[Any]]) -> Path:
    numbers = range(1, len(sheets) + 1)
    parts = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" '
        f'Type="{_KINDS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_SHEET}" xmlns:r="{_KINDS}"><sheets>'
        + "".join(
            f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>'
            for n, name in zip(numbers, sheets, strict=True)
        )
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_RELATIONS}">'
        + "".join(
            f'<Relationship Id="r{n}" Type="{_KINDS}/worksheet" Target="worksheets/s{n}.xml"/>'
            for n in numbers
        )
        + "</Relationships>",
    }
    for n, rows in zip(numbers, sheets.values(), strict=True):
        lines = (f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
        parts[f"xl/worksheets/s{n}.xml"] = (
            f'<worksheet xmlns="{_SHEET}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        )
    with zipfile.ZipFile(path, "w") as file:
        for name, text in parts.items():
            file.writestr(name, text)
    return path


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
    if value is None or np.isnan(value):
        return "<c/>"
    return f"<c><v>{repr(value).replace('inf', '1e999')}</v></c>"
