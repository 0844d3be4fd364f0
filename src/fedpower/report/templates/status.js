"use strict";
// Asks every second how the study stands. What other parties named is set as text, never as HTML.
const LOST = "This page is no longer served: run fedpower study status --serve again.";
const shown = {};

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  return Object.assign(made, attributes);
}

const titled = (text) => text[0].toUpperCase() + text.slice(1);

// Only what has changed is written, so that what is selected or read aloud stays.
function put(id, value, write) {
  const now = JSON.stringify(value);
  if (shown[id] === now) return;
  shown[id] = now;
  write(document.getElementById(id), value);
}

function putText(id, text) {
  put(id, text, (place) => {
    place.textContent = text;
    place.hidden = !text;
  });
}

function putTable(id, table) {
  put(id, table, (place, [headings, rows]) => {
    place.closest("section").hidden = rows.length === 0;
    place.tHead.rows[0].replaceChildren(
      ...headings.map((each) => element("th", titled(each), { scope: "col" })),
    );
    place.tBodies[0].replaceChildren(...rows.map((cells) => {
      const row = document.createElement("tr");
      const [name, ...rest] = cells;
      row.append(element("th", name, { scope: "row" }), ...rest.map((each) => element("td", each)));
      return row;
    }));
  });
}

function putSummary(summary) {
  put("summary", summary, (place) => {
    place.replaceChildren(...Object.entries(summary).map(([term, value]) => {
      const fact = document.createElement("div");
      fact.append(element("dt", titled(term)), element("dd", value));
      return fact;
    }));
  });
}

function show({ facts, words, problem, report }) {
  putText("problem", problem ?? "");
  if (words === null) return;
  document.title = `${words.sentence} – ${facts.name}`;
  putText("sentence", words.sentence);
  put("level", words.level, () => {
    document.getElementById("sentence").className = `judgment ${words.level}`;
  });
  put("report", report, (place) => { place.hidden = !report; });
  putSummary(words.summary);
  putTable("silos", words.silos);
  putTable("rounds", words.rounds);
}

async function refresh() {
  try {
    const reply = await fetch("/status.json");
    show(await reply.json());
  } catch {
    putText("problem", LOST);
  }
  setTimeout(refresh, 1000);
}

refresh();
