"use strict";
/* What would be best with another memory: chosen among the candidates that were priced. */
function sliders({candidates, machine}) {
  const limit = byId("limit"), memory = machine.memory_bytes || d3.max(candidates, (row) => row.needed_bytes);
  function draw() {
    const most = memory * Number(limit.value) / 100, what = byId("what");
    byId("limit-said").textContent = bytes(most);
    limit.setAttribute("aria-valuetext", bytes(most));
    const fit = d3.sort(candidates.filter((row) => row.needed_bytes <= most), (row) => row.seconds_per_step);
    if (!fit.length) {
      const least = d3.least(candidates, (row) => row.needed_bytes);
      what.replaceChildren(make("p", {}, make("b", {}, "No candidate that was priced fits. "),
        `The least memory takes ${least.name}: ${bytes(least.needed_bytes)}.`));
      return;
    }
    const [best, ...others] = fit, next = others.find((row) => row.family !== best.family);
    what.replaceChildren(make("p", {}, make("b", {}, `${best.family}: ${best.name}. `),
      `${seconds(best.seconds_per_step)} a step, ${amount(best.samples_per_s)} samples/s, ${percent(best.utilisation)} MFU, ${bytes(best.needed_bytes)} of ${bytes(most)}.`,
      next ? ` Next is ${next.family} (${next.name}), a step takes ${longer(next.seconds_per_step / best.seconds_per_step)} the best’s.` : ""));
  }
  limit.addEventListener("input", draw);
  draw();
}
