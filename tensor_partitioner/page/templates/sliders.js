"use strict";
/* What would be best with another batch, number of devices, or memory: chosen among what was worked out. */
function sliders(decision, decisions) {
  const pointOf = ({model, machine, candidates}) => ({batch: model.batch, devices: machine.devices, rows: candidates});
  const whole = pointOf(decision), points = decisions.map(pointOf), all = points.length ? points : [whole];
  const batches = [...new Set([...all.map((point) => point.batch), whole.batch])].sort(d3.ascending);
  const counts = [...new Set([...all.map((point) => point.devices), whole.devices])].sort(d3.ascending);
  for (const label of document.querySelectorAll(".of-sweep")) label.hidden = !points.length;
  for (const label of document.querySelectorAll(".of-sweep[hidden]")) label.style.display = "none";
  const batch = byId("batch"), devices = byId("devices"), limit = byId("limit");
  batch.max = batches.length - 1;
  devices.max = counts.length - 1;
  batch.value = batches.indexOf(whole.batch);
  devices.value = counts.indexOf(whole.devices);
  const alone = [[batch, batches, "batch: the model comes with its own"], [devices, counts, "number of devices: the machine comes in one size"]]
    .filter(([, values]) => values.length < 2);
  for (const [input] of alone) input.disabled = true;
  if (points.length) byId("fixed").textContent = alone.map(([, , what]) => `There is no other ${what}.`).join(" ");
  const memory = decision.machine.memory_bytes || d3.max(decision.candidates, (row) => row.needed_bytes);

  function draw() {
    const samples = batches[Number(batch.value)], count = counts[Number(devices.value)], most = memory * Number(limit.value) / 100;
    byId("batch-said").textContent = String(samples);
    byId("devices-said").textContent = String(count);
    byId("limit-said").textContent = bytes(most);
    for (const [input, said] of [[batch, `${samples} samples`], [devices, `${count} devices`], [limit, bytes(most)]]) input.setAttribute("aria-valuetext", said);
    const here = samples === whole.batch && count === whole.devices;
    const point = here ? whole : all.find((other) => other.batch === samples && other.devices === count);
    const what = byId("what");
    if (!point) {
      what.replaceChildren(make("p", {}, `${samples} samples on ${count} devices were not worked out, or cannot be divided.`));
      return;
    }
    const fit = d3.sort(point.rows.filter((row) => row.needed_bytes <= most), (row) => row.seconds_per_step);
    if (!fit.length) {
      const least = d3.least(point.rows, (row) => row.needed_bytes);
      what.replaceChildren(make("p", {}, make("b", {}, "Nothing that was worked out fits. "),
        `The least memory takes ${least.name}: ${bytes(least.needed_bytes)}.`));
      return;
    }
    const [best, ...others] = fit, next = others.find((row) => row.family !== best.family);
    what.replaceChildren(make("p", {}, make("b", {}, `${best.family}: ${best.name}. `),
      `${seconds(best.seconds_per_step)} a step, ${amount(best.samples_per_s)} samples/s, ${percent(best.utilisation)} MFU, ${bytes(best.needed_bytes)} of ${bytes(most)}.`,
      next ? ` Next is ${next.family} (${next.name}), a step takes ${longer(next.seconds_per_step / best.seconds_per_step)} the best’s.` : ""));
  }
  for (const input of [batch, devices, limit]) input.addEventListener("input", draw);
  draw();
  chart(byId("sweep"), (width) => {
    const best = points.map((point) => ({point, row: d3.least(point.rows.filter((row) => row.fits), (row) => row.seconds_per_step)})).filter((entry) => entry.row)
      .sort((a, b) => d3.ascending(a.point.batch, b.point.batch));
    if (!best.length) return make("p", {class: "note"}, "Nothing fits at any of these points.");
    const names = counts.map(String), colors = counts.map((_, n) => PALETTE[n % PALETTE.length]);
    return [make("p", {class: "note"}, "devices"), legend(names, colors), plot({
      width: Math.min(width, 760), height: 320, marginLeft: 60, marginBottom: 44, marginRight: 20, marginTop: 24,
      x: {type: "log", base: 2, label: "samples of a step →", ticks: batches, tickFormat: "d", grid: true},
      y: {label: "↑ samples a second", grid: true, zero: true, tickFormat: "~s"},
      color: {domain: names, range: colors},
      marks: [
        Plot.line(best, {x: (e) => e.point.batch, y: (e) => e.row.samples_per_s, stroke: (e) => String(e.point.devices), z: (e) => e.point.devices}),
        Plot.dot(best, {x: (e) => e.point.batch, y: (e) => e.row.samples_per_s, fill: (e) => String(e.point.devices), r: 4,
          title: (e) => `${e.point.devices} devices, ${e.point.batch} samples\n${e.row.name}\n${amount(e.row.samples_per_s)} samples/s`, tip: true}),
      ],
    }, "Samples a second by batch and devices")];
  });
}
