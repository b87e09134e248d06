"use strict";
const SVG = "http://www.w3.org/2000/svg";
const MOST_CELLS = 16;

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/* The group of a worker at every step; the first step's is the most significant. */
function digitsOf(worker, ways) {
  const found = [];
  let below = ways.reduce((a, b) => a * b, 1);
  for (const way of ways) {
    below /= way;
    found.push(Math.floor(worker / below) % way);
  }
  return found;
}

/* Which piece of a tensor a worker holds: {counts, place} by dimension that is split, or null if none. */
function pieceOf(tensor, ways, worker) {
  const digits = digitsOf(worker, ways), counts = new Map(), place = new Map();
  let held = true, partial = false;
  tensor.layout.forEach((placement, step) => {
    if (placement.startsWith("S")) {
      const dim = Number(placement.slice(1));
      counts.set(dim, (counts.get(dim) ?? 1) * ways[step]);
      place.set(dim, (place.get(dim) ?? 0) * ways[step] + digits[step]);
    } else if (placement.startsWith("@")) {
      held &&= Number(placement.slice(1)) === digits[step];
    } else if (placement !== "R") partial = true;
  });
  return {counts, place, held, partial};
}

/* A tensor as a rectangle of its pieces; those of the worker are filled. */
function picture(tensor, ways, worker, size) {
  const {counts, place, held} = pieceOf(tensor, ways, worker);
  const dims = [...counts.keys()].sort(d3.ascending), last = tensor.shape.length - 1;
  const rowDim = dims.find((dim) => dim !== last || tensor.shape.length === 1 && false);
  const rowDims = dims.length > 1 ? dims.slice(0, 1) : rowDim === undefined ? [] : [rowDim];
  const columnDims = dims.filter((dim) => !rowDims.includes(dim));
  const along = (which) => which.reduce((count, dim) => count * counts.get(dim), 1);
  const at = (which) => which.reduce((number, dim) => number * counts.get(dim) + place.get(dim), 0);
  const rows = along(rowDims), columns = along(columnDims), row = at(rowDims), column = at(columnDims);
  const first = (many, chosen) => Math.max(0, Math.min(many - MOST_CELLS, chosen - MOST_CELLS / 2));
  const top = Math.floor(first(rows, row)), left = Math.floor(first(columns, column));
  const height = Math.min(rows, MOST_CELLS), width = Math.min(columns, MOST_CELLS);
  const said = `${rows * columns} piece${rows * columns === 1 ? "" : "s"}; worker ${worker} holds ${held ? (rows * columns === 1 ? "all of it" : `piece ${row * columns + column}`) : "none of it"}`;
  const image = drawn("svg", {width: size, height: size, viewBox: `0 0 ${size} ${size}`, class: "piece", role: "img", "aria-label": said});
  image.append(drawn("title", {}, said));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const mine = held && top + y === row && left + x === column;
      image.append(drawn("rect", {x: x * size / width, y: y * size / height, width: size / width, height: size / height, class: mine ? "held" : ""}));
    }
  }
  return image;
}

const kinds = (count) => `${count} kind${count === 1 ? "" : "s"}`;

/* Groups of tensors and operators by the part of the network that they are in; those of a name alone are a star's. */
function layersOf(summary) {
  const layers = new Map();
  const at = (name) => layers.get(name) ?? layers.set(name, {name, tensors: [], operators: []}).get(name);
  for (const tensor of summary.parameters) at(tensor.layer).tensors.push(tensor);
  for (const operator of summary.operators) at(operator.layer).operators.push(operator);
  return [...layers.values()];
}

function model(plan) {
  const worker = byId("worker"), {summary} = plan, layers = layersOf(summary);
  const alone = d3.rollup(summary.parameters, (groups) => groups.length === 1, (group) => group.pattern);
  const timed = summary.operators.some((operator) => operator.seconds !== null);
  const title = ({names, pattern}) => (alone.get(pattern) ? pattern : names.length === 1 ? names[0] : `${names[0]} … ${names.at(-1)}`);
  const held = (tensor) => tensor.held_bytes + tensor.state_held_bytes;
  const chosen = () => Math.max(0, Math.min(summary.workers - 1, Math.floor(Number(worker.value)) || 0));

  function tensorRow(tensor) {
    const engines = [
      tensor.dtensor.length ? `DTensor: (${tensor.dtensor.join(", ")})` : null,
      tensor.megatron ? `Megatron: ${tensor.megatron}` : null,
      tensor.fsdp ? `FSDP: ${tensor.fsdp}` : null,
    ].filter(Boolean);
    return make("tr", {},
      make("td", {}, picture(tensor, summary.ways, chosen(), 44)),
      make("td", {}, make("b", {}, title(tensor)), make("span", {class: "engine"}, `${tensor.shape.join(" × ") || "one number"}, ${tensor.dtype}${tensor.names.length > 1 ? `, ${tensor.names.length} alike` : ""}`)),
      make("td", {class: "wide"}, tensor.split, engines.map((text) => make("span", {class: "engine"}, text)),
        tensor.state_split && tensor.state_split !== tensor.split ? make("span", {class: "engine"}, `optimizer’s state: ${tensor.state_split}`) : null),
      make("td", {class: "number"}, bytes(tensor.nbytes)), make("td", {class: "number"}, bytes(held(tensor))));
  }
  function alternatives(operator) {
    const others = operator.names.map((name) => plan.alternatives[name]).find(Boolean);
    if (!others?.length) return null;
    return make("details", {class: "alternatives"}, make("summary", {}, `${others.length} alternatives`),
      make("ul", {}, others.map(({split, strategy, extra_bytes: extra}) => make("li", {}, `${split} (${strategy.join(" ")}): `,
        make("b", {}, `${extra < 0 ? "−" : "+"}${Math.abs(extra).toLocaleString("en-US")} bytes`)))));
  }
  function operatorRow(operator) {
    return make("tr", {},
      make("td", {}, make("b", {}, operator.pattern), make("span", {class: "engine"}, `${operator.op}, ${operator.phase}${operator.names.length > 1 ? `, ${operator.names.length} alike` : ""}`)),
      make("td", {class: "wide"}, operator.split, make("span", {class: "engine"}, `strategy ${operator.strategy.join(" ") || "1"}`), alternatives(operator)),
      make("td", {class: "number"}, bytes(operator.nbytes)),
      timed ? make("td", {class: "number"}, seconds(operator.seconds)) : null);
  }
  function table(label, heads, rows) {
    return make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label}, make("table", {},
      make("thead", {}, make("tr", {}, heads.map((head) => make("th", {class: head.startsWith("~") ? "number" : "", scope: "col"}, head.replace("~", ""))))),
      make("tbody", {}, rows)));
  }
  function fill(details, layer) {
    const parts = [];
    if (layer.tensors.length) {
      parts.push(table(`Tensors of ${layer.name}`, ["who holds it", "tensor", "split", "~all of it", "~a worker, with state"], layer.tensors.map(tensorRow)));
    }
    if (layer.operators.length) {
      parts.push(table(`Operators of ${layer.name}`, ["operator", "who computes what", "~moves", ...(timed ? ["~predicted"] : [])], layer.operators.map(operatorRow)));
    }
    details.replaceChildren(details.firstChild, ...parts);
  }
  const entries = layers.map((layer) => {
    const moved = d3.sum(layer.operators, (operator) => operator.nbytes), kept = d3.sum(layer.tensors, held);
    const details = make("details", {class: "layer"}, make("summary", {}, make("b", {}, layer.name),
      make("span", {}, `${kinds(layer.tensors.length)} of tensors, ${layer.operators.length} of operators; moves ${bytes(moved)}, a worker keeps ${bytes(kept)}`)));
    details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) fill(details, layer); });
    return {layer, details};
  });
  byId("layers").append(...entries.map((entry) => entry.details));
  worker.addEventListener("input", () => { for (const {layer, details} of entries) if (details.children.length > 1) fill(details, layer); });
  byId("find").addEventListener("input", () => {
    const text = byId("find").value.toLowerCase();
    for (const {layer, details} of entries) {
      details.hidden = !`${layer.name} ${layer.tensors.map(title)} ${layer.operators.map((o) => o.pattern)}`.toLowerCase().includes(text);
    }
  });
  const openAll = (open) => { for (const {layer, details} of entries) { if (open && details.children.length === 1) fill(details, layer); details.open = open; } };
  byId("open-all").addEventListener("click", () => openAll(true));
  byId("close-all").addEventListener("click", () => openAll(false));
  const heaviest = d3.greatest(entries, (entry) => d3.sum(entry.layer.operators, (operator) => operator.nbytes));
  if (heaviest) { fill(heaviest.details, heaviest.layer); heaviest.details.open = true; }

  const causes = d3.sort(d3.rollup(summary.causes, (all) => d3.sum(all, (cause) => cause.nbytes), (cause) => cause.kind), ([, nbytes]) => -nbytes);
  chart(byId("causes"), (width) => (causes.length ? amountBars(width, causes, BYTES, "bytes in a step", "Bytes by what they are for")
    : make("p", {class: "note"}, "Nothing moves between workers.")));
  chart(byId("costs"), (width) => amountBars(width, Object.entries(plan.costs), plan.unit === "bytes" ? BYTES : TIME, plan.unit, "Costs of what was found"));
  chart(byId("matrix"), (width) => matrix(width, plan.matrix));
}

function amountBars(width, pairs, units, what, label) {
  const amounts = pairs.map(([name, value]) => ({what: name, value}));
  const {factor, unit} = axisUnit(d3.max(amounts, (entry) => entry.value) || 1, units);
  const said = units === TIME ? seconds : bytes;
  return plot({
    width, height: amounts.length * 40 + 56, marginLeft: 8, marginRight: 16, marginTop: 8, marginBottom: 40,
    x: {label: `${what} [${unit}] →`, grid: true, zero: true, ticks: Math.max(3, Math.floor(width / 110))},
    y: {axis: null, domain: amounts.map((entry) => entry.what), paddingInner: 0.6, paddingOuter: 0.5},
    marks: [
      Plot.barX(amounts, {x: (entry) => entry.value / factor, y: "what", fill: PALETTE[0]}),
      Plot.text(amounts, {x: 0, y: "what", text: (entry) => `${entry.what} · ${said(entry.value)}`, textAnchor: "start", lineAnchor: "bottom", dy: -11,
        textOverflow: "ellipsis-end", lineWidth: (width - 24) / 12, fill: "currentColor"}),
    ],
  }, label);
}

function matrix(width, rows) {
  const cells = rows.flatMap((row, from) => row.map((nbytes, to) => ({from, to, nbytes}))).filter((cell) => cell.from !== cell.to);
  const most = d3.max(cells, (cell) => cell.nbytes);
  if (!most) return make("p", {class: "note"}, "Nothing moves between workers.");
  const {factor} = axisUnit(most, BYTES);
  const size = Math.min(width, 560), every = Math.ceil(rows.length / Math.max(4, Math.floor(size / 40)));
  const ticks = d3.range(0, rows.length, every);
  const svg = plot({
    width: size, height: size, marginLeft: 44, marginTop: 40, marginBottom: 8, marginRight: 8, padding: 0.05,
    x: {label: "to worker →", axis: "top", domain: d3.range(rows.length), ticks, tickValues: ticks},
    y: {label: "from worker ↓", domain: d3.range(rows.length), ticks, tickValues: ticks},
    opacity: {domain: [0, most / factor], range: [0.06, 1]},
    marks: [Plot.cell(cells, {x: "to", y: "from", fill: "var(--accent)", fillOpacity: (cell) => cell.nbytes / factor, title: (cell) => `${cell.from} → ${cell.to}: ${bytes(cell.nbytes)}`, tip: true})],
  }, "Bytes between workers");
  return [legend([`nothing`, `${bytes(most / 2)}`, `${bytes(most)}`], [0.06, 0.53, 1].map((share) => `color-mix(in srgb, var(--accent) ${100 * share}%, transparent)`)), svg];
}

/* The grid of devices of named parallelism: stages by data parallel groups of context and tensor parallel devices. */
function deviceGrid(grid, perNode, stages) {
  const inner = grid.cp * grid.tp, whole = grid.pp * grid.dp * inner;
  const input = byId("device"), room = Math.max(1, Math.floor(256 / inner)), groups = Math.min(grid.dp, room);
  const rows = Math.min(grid.pp, 64);
  input.max = whole - 1;
  function placeOf(device) {
    return {stage: Math.floor(device / (grid.dp * inner)), data: Math.floor(device / inner) % grid.dp,
      context: Math.floor(device / grid.tp) % grid.cp, tensor: device % grid.tp};
  }
  function draw() {
    const device = Math.max(0, Math.min(whole - 1, Math.floor(Number(input.value)) || 0)), mine = placeOf(device);
    const begin = Math.max(0, Math.min(grid.dp - groups, mine.data - Math.floor(groups / 2)));
    const cell = Math.max(10, Math.min(28, Math.floor(900 / (groups * inner)))), gap = 4, left = grid.pp > 1 ? 64 : 4;
    const width = left + groups * (inner * cell + gap) + 4, height = 20 + rows * (cell + gap);
    const image = drawn("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Devices by stage and group"});
    for (let g = 0; g < groups; g += 1) {
      if (cell * inner >= 22 || g % 4 === 0) {
        image.append(drawn("text", {x: left + g * (inner * cell + gap), y: 12, "font-size": 10, fill: "currentColor"}, `${grid.dp > 1 ? "dp " : ""}${grid.dp > 1 ? begin + g : ""}`));
      }
    }
    for (let s = 0; s < rows; s += 1) {
      if (grid.pp > 1) image.append(drawn("text", {x: 0, y: 20 + s * (cell + gap) + cell * 0.7, "font-size": 11, fill: "currentColor"}, `stage ${s}`));
      for (let g = 0; g < groups; g += 1) {
        for (let i = 0; i < inner; i += 1) {
          const number = (s * grid.dp + begin + g) * inner + i, place = placeOf(number);
          const same = place.stage === mine.stage && place.tensor === mine.tensor;
          const rect = drawn("rect", {x: left + g * (inner * cell + gap) + i * cell, y: 20 + s * (cell + gap), width: cell - 1, height: cell - 1,
            fill: number === device ? "var(--accent)" : "var(--cell)", stroke: same ? "var(--ink)" : "none", "stroke-width": same ? 2 : 0});
          rect.append(drawn("title", {}, `device ${number}, node ${Math.floor(number / perNode)}`));
          rect.addEventListener("click", () => { input.value = number; draw(); });
          image.append(rect);
        }
      }
    }
    byId("grid").replaceChildren(image);
    const stage = stages[mine.stage];
    byId("device-said").textContent = `of ${whole}: node ${Math.floor(device / perNode)}`
      + (grid.pp > 1 ? `, stage ${mine.stage}${stage ? ` (needs ${bytes(stage.needed_bytes)})` : ""}` : "")
      + (grid.dp > 1 ? `, data parallel group ${mine.data}` : "") + (grid.cp > 1 ? `, part ${mine.context} of every sequence` : "")
      + (grid.tp > 1 ? `, part ${mine.tensor} of every layer` : "")
      + (groups < grid.dp ? `. ${groups} of ${grid.dp} data parallel groups are drawn.` : ".");
  }
  input.addEventListener("input", draw);
  draw();
}
