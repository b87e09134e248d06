"use strict";
const KIND_NAMES = ["computing", "forward", "backward", "weights", "packing and unpacking", "launching", "waiting for bytes", "waiting for latency", "waiting for others"];
const KIND_COLORS = ["#4269d0", "#4269d0", "#efb118", "#9c6b4e", "#6cc5b0", "#a463f2", "#ff725c", "#ff8ab7", "#9498a0"];
/* What fields of a worker's seconds are called. */
const SPENT = {compute_s: "computing", copies_s: "packing and unpacking", launches_s: "launching", wire_s: "waiting for bytes",
  latency_s: "waiting for latency", waiting_s: "waiting for others"};
const kindColor = (kind) => KIND_COLORS[KIND_NAMES.indexOf(kind)] ?? "#97bbf5";

/* Timelines of which none is more times as long as another share their axis. */
const MOST_RATIO = 4;

function timelines(all) {
  const zoom = byId("zoom"), position = byId("position"), longest = d3.max(all, (one) => one.seconds) || 1;
  const isShared = d3.every(all, (one) => one.seconds * MOST_RATIO > longest);
  const redraws = [];
  function seen(one) {
    const most = isShared ? longest : one.seconds;
    const wide = most / Number(zoom.value), begin = (most - wide) * Number(position.value) / 100;
    return [begin, begin + wide];
  }
  for (const one of all) {
    const element = make("div", {class: "chart"});
    byId("timelines").append(make("figure", {}, make("figcaption", {}, `${one.title}: ${seconds(one.seconds)}. ${one.note ?? ""}`), element));
    redraws.push(chart(element, (width) => lanes(width, one, seen(one), Number(zoom.value) * Math.ceil(width / 300))));
  }
  function draw() {
    const [begin, end] = seen(all[0]);
    byId("window").textContent = Number(zoom.value) === 1 ? "all of it" : `${seconds(begin)} to ${seconds(end)}`;
    position.disabled = Number(zoom.value) === 1;
    for (const redraw of redraws) redraw();
  }
  zoom.addEventListener("input", draw);
  position.addEventListener("input", draw);
  draw();
}

function lanes(width, timeline, [begin, end], detail) {
  const {factor, unit} = axisUnit(end, TIME);
  const named = Object.keys(timeline.lanes);
  const spans = named.flatMap((lane) => timeline.lanes[lane].map(([kind, what, from, to]) => ({lane, kind: SPENT[kind] ?? kind, what, from, to})))
    .filter((span) => span.to > begin && span.from < end);
  const names = KIND_NAMES.filter((name) => spans.some((span) => span.kind === name));
  const tall = named.length > 8 ? 20 : 28;
  const numbered = spans.filter((span) => detail >= 1 && /^micro-batch/.test(span.what) && (span.to - span.from) / (end - begin) * (width - 90) > 22);
  return [legend(names, names.map(kindColor)), plot({
    width, height: named.length * tall + 56, marginLeft: 86, marginRight: 14, marginBottom: 40, marginTop: 8,
    x: {label: `time [${unit}] →`, domain: [begin / factor, end / factor], grid: true, ticks: Math.max(3, Math.floor(width / 110))},
    y: {label: null, domain: named, padding: 0.12, tickSize: 0},
    color: {domain: names, range: names.map(kindColor)},
    marks: [
      Plot.barX(spans, {x1: (s) => Math.max(s.from, begin) / factor, x2: (s) => Math.min(s.to, end) / factor, y: "lane", fill: "kind",
        ...(spans.length < 400 ? {stroke: "var(--ground)", strokeWidth: 0.5} : {}),
        title: (s) => `${s.lane}, ${s.kind}\n${s.what}\n${seconds(s.from)} to ${seconds(s.to)} (${seconds(s.to - s.from)})`, tip: true}),
      Plot.text(numbered, {x: (s) => (Math.max(s.from, begin) + Math.min(s.to, end)) / 2 / factor, y: "lane", text: (s) => s.what.match(/\d+/)[0], fill: "#111", fontSize: 10}),
    ],
  }, timeline.title)];
}

function runs(all) {
  for (const run of all) {
    const fields = Object.keys(SPENT).filter((field) => run.spending.some((one) => one[field] > 0)), causes = fields.map((field) => SPENT[field]);
    const source = run.source === "simulator" ? "simulated" : "executed", word = run.source === "simulator" ? "Predicted" : "Measured";
    if (run.spending.length) {
      const element = make("div", {class: "chart"}), shown = run.spending.slice(0, 16);
      const rest = run.spending.length > shown.length ? ` The first ${shown.length} of ${run.spending.length} workers.` : "";
      byId("spent").append(make("figure", {}, make("figcaption", {}, `${word} on ${run.machine} (${run.hardware}): seconds of each worker, step ${seconds(run.seconds_per_step)}.${rest}`), element));
      chart(element, (width) => stackedBars(width, shown.map((one) => ({
        key: String(one.worker), label: `worker ${one.worker} · ${seconds(d3.sum(fields, (field) => one[field]))}`, parts: fields.map((field) => one[field]),
      })), causes, {units: TIME, what: "seconds of a step", label: `Seconds of each worker, ${source}`, colorOf: kindColor}))();
    }
    const memory = run.devices.length ? run.devices : run.arena_bytes.map((nbytes, worker) => (
      {device: `worker ${worker}`, peak_bytes: nbytes, capacity_bytes: null, verdict: "its arena", by_kind: {arena: nbytes}}));
    for (const one of memory) if (!Object.keys(one.by_kind).length) one.by_kind = {allocated: one.peak_bytes};
    const kinds = [...new Set(memory.flatMap((one) => Object.keys(one.by_kind)))], shown = memory.slice(0, 16);
    const element = make("div", {class: "chart"}), capacity = shown[0].capacity_bytes;
    byId("peaks").append(make("figure", {}, make("figcaption", {}, `${word} on ${run.machine}: bytes of each device when it is fullest, by kind`), element));
    chart(element, (width) => stackedBars(width, shown.map((one) => ({
      key: one.device, label: `${one.device} · ${bytes(one.peak_bytes)} · ${one.verdict}`, parts: kinds.map((kind) => one.by_kind[kind] ?? 0),
    })), kinds, {units: BYTES, what: "bytes", label: `Bytes of each device, ${source}`, limit: capacity, limitLabel: capacity ? `a device has ${bytes(capacity)}` : ""}))();
  }
}

function occupied(all) {
  const select = byId("occupied-worker");
  select.append(...all.map((one) => make("option", {value: one.worker}, String(one.worker))));
  const redraw = chart(byId("occupied"), (width) => {
    const one = all.find((other) => String(other.worker) === select.value) ?? all[0];
    const {factor, unit} = axisUnit(d3.max(one.at_s) || 1, TIME);
    const peak = d3.max(one.nbytes, (row) => d3.sum(row)) || 1, scale = axisUnit(peak, BYTES);
    const colors = one.kinds.map((_, n) => PALETTE[n % PALETTE.length]);
    const flat = one.kinds.flatMap((kind, n) => one.at_s.map((at, moment) => ({at: at / factor, kind, value: one.nbytes[moment][n] / scale.factor})));
    const near = one.capacity && one.capacity < 3 * peak;
    const marks = [
      Plot.areaY(flat, Plot.stackY({x: "at", y: "value", fill: "kind", order: one.kinds, curve: "step-after"})),
      Plot.ruleY([0]),
    ];
    if (near) marks.push(Plot.ruleY([one.capacity / scale.factor], {stroke: "var(--bad)", strokeWidth: 2}));
    return [legend(one.kinds, colors), plot({
      width, height: 300, marginLeft: 56, marginBottom: 40, marginRight: 16, marginTop: 24,
      x: {label: `time [${unit}] →`, grid: true, ticks: Math.max(3, Math.floor(width / 110))},
      y: {label: `↑ bytes [${scale.unit}]`, grid: true},
      color: {domain: one.kinds, range: colors}, marks,
    }, "Memory over time"),
    make("p", {class: "note"}, `At most ${bytes(peak)} live at once. A device has ${bytes(one.capacity)}${near ? ", the line" : ""}.`)];
  });
  select.addEventListener("change", redraw);
}
