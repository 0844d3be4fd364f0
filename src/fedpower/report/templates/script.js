"use strict";
// Headings of sortable tables become buttons: the page is complete without them.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((each) => each.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table.tBodies[0], place, down ? -1 : 1, heading.classList.contains("number"));
    });
  });
}

function sort(body, place, sign, numeric) {
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[place];
    const key = numeric ? cell.dataset.value ?? "" : cell.textContent;
    return { row, key, missing: numeric && key === "" };
  });
  keyed.sort((a, b) => {
    if (a.missing || b.missing) return a.missing - b.missing;
    return sign * (numeric ? a.key - b.key : a.key.localeCompare(b.key, undefined, { numeric: true }));
  });
  body.append(...keyed.map((each) => each.row));
}
