"use strict";
// Draws the figures of a page, and keeps them together: a configuration that is clicked is shown in all of them.
const picked = new Set();
const figures = [...document.querySelectorAll("figure[data-chart]")];
const views = []; // in the order of their figures
const switches = [...document.querySelectorAll("button[data-configuration]")];
const others = document.querySelector("select[data-configurations]");
const everything = document.querySelector("button[data-all]");

function show() {
  const names = [...picked];
  views.forEach((view) => view.signal("picked", names).runAsync());
  for (const button of switches) button.setAttribute("aria-pressed", picked.has(button.dataset.configuration));
  for (const row of document.querySelectorAll("tr[data-configuration]")) {
    row.classList.toggle("faint", names.length > 0 && !picked.has(row.dataset.configuration));
  }
  if (everything) everything.disabled = !names.length;
  if (others) others.value = names.find((name) => [...others.options].some((each) => each.value === name)) || "";
  document.body.dataset.picked = names.join("\n");
}

function toggle(name) {
  if (!picked.delete(name)) picked.add(name);
  show();
}

for (const button of switches) button.addEventListener("click", () => toggle(button.dataset.configuration));
if (everything) everything.addEventListener("click", () => { picked.clear(); show(); });
if (others) others.addEventListener("change", () => {
  for (const option of others.options) picked.delete(option.value);
  if (others.value) picked.add(others.value);
  show();
});

function chosen(row) {
  if (row?.configuration) toggle(row.configuration);
}

// The arrow keys go through the marks of a figure as the pointer would, Enter clicks one.
function listen(place) {
  let at = -1;
  const marks = () => [...place.querySelectorAll("path, rect, text, line")].filter((each) => each.__data__?.tooltip);
  const send = (mark, type) => {
    const box = mark.getBoundingClientRect();
    const where = { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, bubbles: true };
    mark.dispatchEvent(new PointerEvent(type, where));
  };
  place.addEventListener("keydown", (event) => {
    const all = marks();
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && all.length) {
      at = at < 0 ? (step > 0 ? 0 : all.length - 1) : (at + step + all.length) % all.length;
      send(all[at], "pointermove");
    } else if (event.key === "Enter" && at >= 0) {
      chosen(all[at].__data__.datum);
    } else if (event.key === "Escape" && at >= 0) {
      send(all[at], "pointerout");
      at = -1;
    } else return;
    event.preventDefault();
  });
}

async function draw(figure) {
  waiting.delete(figure);
  const place = figure.querySelector(".chart");
  const specification = JSON.parse(figure.querySelector("script").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { theme: "custom", maxHeight: 600 } };
  const { view } = await vegaEmbed(place, specification, options);
  views[figures.indexOf(figure)] = view;
  if (picked.size) view.signal("picked", [...picked]).runAsync();
  view.addEventListener("click", (event, item) => chosen(item?.datum));
  for (const button of figure.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => {
      const [x, y] = JSON.parse(button.dataset.zoom);
      view.signal("zoom_x", x).signal("zoom_y", y).runAsync();
    });
  }
  listen(place);
}

// Figures are drawn one by one, those on the screen first. In between, the page scrolls and answers; paper gets all.
const waiting = new Set(figures);
const onScreen = (figure) => {
  const box = figure.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
};
const pauses = new MessageChannel(); // timers take longer, a second each in a tab that nobody sees
const pause = () => new Promise((go) => {
  pauses.port1.onmessage = go;
  pauses.port2.postMessage(null);
});
const drawn = (async () => {
  show();
  while (waiting.size) {
    await draw([...waiting].find(onScreen) ?? [...waiting][0]);
    await pause();
  }
  document.body.dataset.drawn = views.length;
})();
addEventListener("beforeprint", () => waiting.forEach(draw));

// A table that is wider than its place says so.
const frames = [...document.querySelectorAll(".scroll")];
const hint = () => {
  for (const frame of frames) frame.classList.toggle("more", frame.scrollWidth > frame.clientWidth + 1);
};
addEventListener("resize", hint);
document.addEventListener("toggle", hint, true);
hint();
