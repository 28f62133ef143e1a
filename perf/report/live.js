"use strict";
// Fills the live page from the watching program, which sends the state after each reading.
const choice = { span: document.querySelector("button[data-span]").dataset.span, model: "", server: "" };
const named = (name) => document.getElementById(name);
let source;
let retry;

function fill(name, table) {
  const section = named(name);
  section.hidden = !table.rows.length;
  if (JSON.stringify(table) === section.dataset.shown) return;
  section.dataset.shown = JSON.stringify(table);
  const cell = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  section.querySelector("thead tr").replaceChildren(...table.titles.map((title) => cell("th", title)));
  section.querySelector("tbody").replaceChildren(...table.rows.map((texts) => {
    const row = document.createElement("tr");
    row.append(...texts.map((text) => cell("td", text)));
    row.classList.toggle("down", texts.some((text) => text === "died" || text === "no answer"));
    return row;
  }));
  section.querySelectorAll("th, td").forEach((each) => {
    const text = name === "processes" ? ["process", "of", "server"] : ["server", "model"];
    each.classList.toggle("left", text.includes(table.titles[each.cellIndex]));
  });
}

function offer(name, value, values) {
  const list = named(name);
  if (values.join("\n") !== list.dataset.shown) {
    list.dataset.shown = values.join("\n");
    list.replaceChildren(...values.map((each) => new Option(each, each)));
  }
  if (document.activeElement !== list || !list.value) list.value = value;
}

function say(servers) {
  const line = (text, kind) => Object.assign(document.createElement("p"), { textContent: text, className: kind });
  const lines = servers.flatMap((each) => [
    line(`${each.url}: ${each.down || each.machine || "answers"}`, each.down ? "down" : "soft"),
    ...each.notes.map((note) => line(note, "soft")),
  ]);
  if (lines.map((each) => each.outerHTML).join() !== [...named("servers").children].map((each) => each.outerHTML).join())
    named("servers").replaceChildren(...lines);
}

// The rows of a step that has grown replace those that the figure has of it. Returns all rows.
function stream(view, rows, state) {
  const grown = (row) => row.step >= (row.kind === "cell" ? state.column : state.step);
  const old = (row) => state.whole || row.at < state.begin || grown(row);
  const all = [...view.data("rows").filter((row) => !old(row)), ...rows];
  view.change("rows", view.changeset().remove(old).insert(rows));
  const names = [...new Set(all.flatMap((row) => row.line ?? []))].sort();
  if (names.length) view.signal("names", names);
  view.data("marks", state.marks).signal("begin", state.begin).signal("end", state.end);
  return all;
}

function replace(view, rows) {
  view.data("rows", rows).signal("right", Math.max(3.1, ...rows.map((row) => row.nines + 0.1)));
  return rows;
}

// A model that does not count its padding has no figure of it, and a server elsewhere none of its processes.
const OPTIONAL = ["padding", "busy", "memory"];

function hideEmpty(figure, rows) {
  const hidden = !rows.some((row) => row.kind === "line" && row.value !== null);
  if (hidden === figure.hidden) return;
  figure.hidden = hidden;
  dispatchEvent(new Event("resize"));
}

function show(state) {
  named("connection").textContent = "";
  named("clock").textContent = new Date(state.end).toLocaleTimeString();
  offer("model", state.choice.model, state.choice.models);
  offer("server", state.choice.server, state.choice.servers);
  named("of-model").hidden = !state.choice.models.length;
  named("of-server").hidden = state.choice.servers.length < 2;
  say(state.servers);
  for (const [name, table] of Object.entries(state.tables)) fill(name, table);
  named("source").textContent = state.source && `The distribution of latencies is of ${state.source}.`;
  document.querySelectorAll("figure[data-chart]").forEach((figure, at) => {
    const name = figure.dataset.chart;
    const view = views[at];
    const rows = name === "distribution" ? replace(view, state.distribution) : stream(view, state.figures[name], state);
    view.signal("top", Math.max(0, ...rows.map((row) => row.most ?? row.value ?? 0)) || 1).runAsync();
    if (OPTIONAL.includes(name)) hideEmpty(figure, rows);
  });
  hint();
  document.body.dataset.readings = Number(document.body.dataset.readings || 0) + 1;
}

function lost() {
  named("connection").textContent = "The watching program does not answer. This page tries again each 2 s.";
  if (source.readyState !== EventSource.CLOSED) return;
  clearTimeout(retry);
  retry = setTimeout(follow, 2000);
}

// A browser has six connections to a host, so pages that nobody sees leave theirs to others.
function follow() {
  source?.close();
  if (document.hidden) return;
  source = new EventSource(`events?${new URLSearchParams(choice)}`);
  source.onmessage = (message) => show(JSON.parse(message.data));
  source.onerror = lost;
}

function choose(name, value) {
  choice[name] = value;
  follow();
}

for (const button of document.querySelectorAll("button[data-span]")) {
  button.addEventListener("click", () => {
    for (const each of document.querySelectorAll("button[data-span]")) each.setAttribute("aria-pressed", each === button);
    choose("span", button.dataset.span);
  });
}
for (const name of ["model", "server"]) named(name).addEventListener("change", (event) => choose(name, event.target.value));
drawn.then(() => {
  document.addEventListener("visibilitychange", follow);
  follow();
});
