"use strict";
/* Of a step: less is rounding. */
const LEAST_SHARE = 1e-6;

/* The table of candidates, what is shown of a chosen one, and the bars of the best of every family. */
function candidates(decision) {
  const rows = decision.candidates, causes = Object.keys(rows[0].shares);
  const uses = [...new Set(rows.flatMap((row) => row.memory.map((line) => line.what)))];
  rows.forEach((row, n) => { row.rank = n + 1; });
  const secondsOf = (row) => causes.map((cause) => (Math.abs(row.shares[cause]) > LEAST_SHARE * row.seconds_per_step ? row.shares[cause] : 0));
  const bytesOf = (row) => uses.map((use) => d3.sum(row.memory.filter((line) => line.what === use), (line) => line.nbytes));
  const hasTokens = rows.some((row) => row.tokens_per_s);
  const reason = (row) => row.why || "the best";
  const hasBubble = rows.some((row) => row.bubble_s > 0);
  const columns = [
    {key: "rank", title: "#", number: true, text: (row) => String(row.rank)},
    {key: "name", title: "way"},
    {key: "seconds_per_step", title: "step", number: true, text: (row) => seconds(row.seconds_per_step)},
    {key: "margin_bytes", title: "fits", number: true},
    {key: "family", title: "family", wide: true, text: (row) => row.family},
    {key: "why", title: "why not", text: reason},
    {key: "samples_per_s", title: "samples/s", number: true, seldom: hasTokens, text: (row) => amount(row.samples_per_s)},
    ...(hasTokens ? [{key: "tokens_per_s", title: "tokens/s", number: true, text: (row) => amount(row.tokens_per_s)}] : []),
    {key: "utilisation", title: "MFU", number: true, text: (row) => percent(row.utilisation)},
    {key: "exposed_s", title: "exposed communication", number: true, seldom: true, text: (row) => seconds(row.exposed_s)},
    ...(hasBubble ? [{key: "bubble_s", title: "bubble", number: true, seldom: true, text: (row) => seconds(row.bubble_s)}] : []),
    {key: "needed_bytes", title: "memory", number: true, text: (row) => bytes(row.needed_bytes)},
  ];
  const state = {key: "rank", up: true, limit: 100, chosen: rows[0]};
  const families = [...new Set(rows.map((row) => row.family))];
  byId("family").append(make("option", {value: ""}, "all"), ...families.map((name) => make("option", {value: name}, name)));

  function bestOfFamilies(from) {
    const seen = new Set();
    return from.filter((row) => !seen.has(row.family) && seen.add(row.family));
  }
  function matching() {
    const family = byId("family").value;
    let found = rows.filter((row) => (!family || row.family === family) && (!byId("only-fits").checked || row.fits));
    if (byId("only-best").checked && !family) found = bestOfFamilies(found);
    const order = state.up ? d3.ascending : d3.descending;
    return d3.sort(found, (a, b) => order(a[state.key], b[state.key]));
  }
  function cell(column, row) {
    if (column.key === "name") {
      return make("td", {class: "name"}, make("button", {
        type: "button", "aria-pressed": String(row === state.chosen), onclick: () => choose(row),
      }, broken(row.name)), make("small", {class: "narrow"}, reason(row)));
    }
    if (column.key === "margin_bytes") {
      const said = row.fits ? `${bytes(row.margin_bytes)} left` : `${bytes(-row.margin_bytes)} too large`;
      return make("td", {class: `number ${row.fits ? "fits" : "large"}`}, said);
    }
    const kind = column.key === "why" ? "why" : column.key === "rank" ? "number rank" : column.wide ? "wide" : column.number ? "number" : "";
    return make("td", {class: column.seldom ? `${kind} seldom` : kind}, column.text(row));
  }
  function drawTable() {
    const found = matching(), drawn = found.slice(0, state.limit);
    const table = byId("table");
    const focused = document.activeElement?.dataset?.key;
    table.tHead.replaceChildren(make("tr", {}, columns.map((column) => {
      const sorted = column.key === state.key;
      return make("th", {class: `${column.number ? "number" : ""}${column.seldom ? " seldom" : ""} of-${column.key}`, scope: "col", "aria-sort": sorted ? (state.up ? "ascending" : "descending") : "none"},
        make("button", {type: "button", "data-key": column.key, onclick: () => sortBy(column.key)},
          column.title + (sorted ? (state.up ? " ↑" : " ↓") : "")));
    })));
    table.tBodies[0].replaceChildren(...drawn.map((row) =>
      make("tr", {class: row === state.chosen ? "chosen" : false}, columns.map((column) => cell(column, row)))));
    if (focused) table.tHead.querySelector(`[data-key="${focused}"]`)?.focus();
    const more = decision.search.projected - rows.length, left = more > 0 ? `; ${more} slower ones are not on this page` : "";
    byId("shown").textContent = `${drawn.length} of ${rows.length} shown${left}`;
    byId("more").hidden = found.length <= drawn.length;
  }
  function sortBy(key) {
    state.up = state.key === key ? !state.up : !["samples_per_s", "tokens_per_s", "utilisation", "margin_bytes"].includes(key);
    state.key = key;
    drawTable();
  }
  function choose(row) {
    state.chosen = row;
    const name = row.name;
    drawTable();
    [...byId("table").querySelectorAll("td.name button")].find((button) => button.textContent === name)?.focus({preventScroll: true});
    drawDetail();
    redrawShares();
    redrawUses();
  }
  function part(title, names, values, said, whole) {
    const order = d3.sort(names.map((_, n) => n).filter((n) => values[n] > 0), (n) => -values[n]);
    return make("div", {}, make("h3", {}, title), make("table", {class: "plain"}, make("tbody", {},
      order.map((n) => make("tr", {}, make("th", {scope: "row"}, names[n]), make("td", {class: "number"}, said(values[n])),
        make("td", {class: "number"}, percent(values[n] / whole)))))));
  }
  function drawDetail() {
    const row = state.chosen;
    byId("detail").replaceChildren(
      make("h3", {}, row.name),
      make("p", {}, row.rank === 1
        ? "This is the best."
        : `${longer(row.seconds_per_step / rows[0].seconds_per_step)} the best: ${row.why}.`,
      ` ${row.micro_batches} micro-batch${row.micro_batches === 1 ? "" : "es"}; ${amount(row.roof_factor)} times its ideal compute time.`),
      make("div", {class: "pair"}, part("Seconds of a step", causes, secondsOf(row), seconds, row.seconds_per_step),
        part("Bytes of the fullest device", uses, bytesOf(row), bytes, row.needed_bytes)));
  }
  function barred() {
    const best = bestOfFamilies(rows).slice(0, 14);
    const all = best.includes(state.chosen) ? best : [...best, state.chosen];
    return all.map((row) => ({row, key: String(row.rank), mark: row === state.chosen ? "▶ " : ""}));
  }
  const redrawShares = chart(byId("shares"), (width) => stackedBars(width,
    barred().map(({row, key, mark}) => ({key, label: `${mark}${row.family} · ${seconds(row.seconds_per_step)}${row.fits ? "" : " · does not fit"}`, parts: secondsOf(row)})),
    causes, {units: TIME, what: "seconds of a step", label: "Seconds of a step by cause, a bar for each family"}));
  const redrawUses = chart(byId("uses"), (width) => stackedBars(width,
    barred().map(({row, key, mark}) => ({key, label: `${mark}${row.family} · ${bytes(row.needed_bytes)}`, parts: bytesOf(row)})),
    uses, {units: BYTES, what: "bytes", label: "Bytes on the fullest device by use, a bar for each family",
      limit: Number.isFinite(rows[0].capacity_bytes) ? rows[0].capacity_bytes : null, limitLabel: `a device has ${bytes(rows[0].capacity_bytes)}`}));
  chart(byId("bounds"), (width) => {
    const bounded = rows.filter((row) => row.bound_s > 0);
    if (!bounded.length) return make("p", {class: "note"}, "No candidate has a bound.");
    const most = Math.max(...bounded.map((row) => row.seconds_per_step));
    const least = Math.min(...bounded.map((row) => row.bound_s));
    const {factor, unit} = axisUnit(least, TIME);
    const names = ["fits", "does not fit"], colors = [PALETTE[0], PALETTE[2]];
    return [legend([...names, "the best"], [...colors, "var(--good)"]), plot({
      width: Math.min(width, 760), height: 380, marginLeft: 60, marginBottom: 44, marginRight: 20, marginTop: 24,
      x: {type: "log", label: `lower bound [${unit}] →`, grid: true, ticks: 5, tickFormat: "~g", domain: [least / factor / 1.1, most / factor * 1.1]},
      y: {type: "log", label: `↑ predicted seconds of a step [${unit}]`, grid: true, ticks: 6, tickFormat: "~g", domain: [least / factor / 1.1, most / factor * 1.1]},
      color: {domain: names, range: colors},
      marks: [
        Plot.line([[least / factor, least / factor], [most / factor, most / factor]], {stroke: "var(--soft)", strokeDasharray: "4,4"}),
        Plot.ruleY([rows[0].seconds_per_step / factor], {stroke: "var(--good)", strokeWidth: 2}),
        Plot.dot(bounded, {x: (row) => row.bound_s / factor, y: (row) => row.seconds_per_step / factor, stroke: (row) => (row.fits ? "fits" : "does not fit"), r: 3,
          title: (row) => `${row.name}\nbound ${seconds(row.bound_s)}\npredicted ${seconds(row.seconds_per_step)}`, tip: true}),
      ],
    }, "Lower bounds and predicted seconds of all candidates")];
  });
  for (const id of ["family", "only-fits", "only-best"]) byId(id).addEventListener("change", () => { state.limit = 100; drawTable(); });
  byId("more").addEventListener("click", () => { state.limit += 100; drawTable(); });
  drawTable();
  drawDetail();
}
