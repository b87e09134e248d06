"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const PALETTE = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0", "#0e7c86", "#c2185b", "#8d8a00"];

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function scaled(value, units) {
  const size = Math.abs(value);
  for (const [factor, unit] of units) if (size >= factor * 0.9995) return [value / factor, unit];
  const [factor, unit] = units[units.length - 1];
  return [value / factor, unit];
}

const TIME = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[1e15, "PB"], [1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const digits = (value, count) => Number(value.toPrecision(count)).toLocaleString("en-US", {maximumSignificantDigits: count});
const seconds = (value) => {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0 s";
  const [number, unit] = scaled(value, TIME);
  return `${digits(number, 4)} ${unit}`;
};
const bytes = (value) => {
  if (value === null || value === undefined) return "-";
  const [number, unit] = scaled(value, BYTES);
  return `${digits(number, 3)} ${unit}`;
};
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const amount = (value) => digits(value, 4);
const longer = (ratio) => (Math.abs(ratio - 1) < 0.0005 ? "as long as" : `${digits(ratio, 4)} times as long as`);

/* One unit for all ticks of an axis: {factor, unit}. */
function axisUnit(most, units) {
  const [factor, unit] = units.find(([size]) => most >= size) ?? units[units.length - 1];
  return {factor, unit};
}

/* A name of several parts, which may go on in the next line after each, and nowhere else. */
const broken = (name) => (name.includes("=") ? name.split(",").flatMap((part, n, parts) =>
  [make("span", {class: "whole"}, n < parts.length - 1 ? `${part},` : part), make("wbr")]) : [name]);

const charts = [];

/* Draws into an element now, and again where its width changes. */
function chart(element, draw) {
  if (!element) return () => {};
  const entry = {element, draw, width: -1};
  entry.redraw = () => {
    entry.width = Math.max(280, Math.floor(element.clientWidth || document.body.clientWidth - 32));
    element.replaceChildren(...[draw(entry.width)].flat().filter(Boolean));
  };
  charts.push(entry);
  return entry.redraw;
}

function redrawAll() {
  for (const entry of charts) {
    const width = Math.max(280, Math.floor(entry.element.clientWidth || 0));
    if (width !== entry.width) entry.redraw();
  }
}

function legend(names, colors) {
  return make("ul", {class: "legend", "aria-label": "Legend"},
    names.map((name, n) => make("li", {}, make("i", {style: `background:${colors[n]}`}), name)));
}

function plot(options, label) {
  const svg = Plot.plot({style: {fontSize: "12px", background: "none"}, ...options});
  const image = svg.tagName.toLowerCase() === "svg" ? svg : svg.querySelector("svg");
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", label);
  for (const part of image.querySelectorAll("g[aria-label]")) part.setAttribute("role", "group"); // only roles have labels
  return svg;
}

/* Stacked bars, one below the other, each under its label. rows: {key, label, parts}; limit: a line. */
function stackedBars(width, rows, names, {units, what, label, limit = null, limitLabel = "", colorOf = (_, n) => PALETTE[n % PALETTE.length]}) {
  const present = names.map((_, n) => n).filter((n) => rows.some((row) => row.parts[n] > 0));
  const shown = present.map((n) => names[n]);
  const colors = present.map((n) => colorOf(names[n], n));
  const most = Math.max(...rows.map((row) => d3.sum(row.parts)), limit ?? 0) || 1;
  const {factor, unit} = axisUnit(most, units);
  const said = units === TIME ? seconds : bytes;
  const flat = rows.flatMap((row) => present.map((n) => ({
    key: row.key, name: names[n], value: row.parts[n] / factor,
    title: `${row.label}\n${names[n]}: ${said(row.parts[n])}`,
  })).filter((part) => part.value > 0));
  const marks = [
    Plot.barX(flat, Plot.stackX({order: shown, x: "value", y: "key", fill: "name", title: "title", tip: true})),
    Plot.text(rows, {x: 0, y: "key", text: "label", textAnchor: "start", lineAnchor: "bottom", dy: -14,
      textOverflow: "ellipsis-end", lineWidth: (width - 24) / 12, fill: "currentColor", frameAnchor: "left"}),
  ];
  if (limit !== null) {
    marks.push(Plot.ruleX([limit / factor], {stroke: "var(--bad)", strokeWidth: 2}));
    const right = limit / most > 0.6;
    marks.push(Plot.text([limitLabel], {x: limit / factor, frameAnchor: "top", text: (d) => d, fill: "var(--bad)",
      textAnchor: right ? "end" : "start", dx: right ? -5 : 5, dy: -14}));
  }
  return [
    legend(shown, colors),
    plot({
      width, height: rows.length * 44 + 66, marginLeft: 8, marginRight: 16, marginTop: 20, marginBottom: 40,
      x: {label: `${what} [${unit}] →`, grid: true, domain: [0, (most / factor) * 1.02], ticks: Math.max(3, Math.floor(width / 110))},
      y: {axis: null, domain: rows.map((row) => row.key), paddingInner: 0.58, paddingOuter: 0.4},
      color: {domain: shown, range: colors}, marks,
    }, label),
  ];
}

/* Say above every box that is wider than its place that it has more to the right, as long as it has. */
function markOverflowing() {
  for (const box of document.querySelectorAll(".scroll")) {
    const note = make("p", {class: "note more-right", hidden: true}, "There is more to the right: scroll sideways →");
    box.before(note);
    const watch = new ResizeObserver(() => {
      note.hidden = box.scrollWidth <= box.clientWidth + 1;
      box.classList.toggle("overflowing", !note.hidden);
    });
    for (const watched of [box, ...box.children]) watch.observe(watched);
  }
}
