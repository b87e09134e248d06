"use strict";
/* What would be best with another memory of a device: chosen among the candidates of the decision. */
function memorySlider(decision) {
  const limit = byId("limit"), what = byId("what");
  const memory = decision.machine.memory_bytes || d3.max(decision.candidates, (row) => row.needed_bytes);

  function draw() {
    const most = memory * Number(limit.value) / 100;
    byId("limit-said").textContent = bytes(most);
    limit.setAttribute("aria-valuetext", bytes(most));
    const fit = d3.sort(decision.candidates.filter((row) => row.needed_bytes <= most), (row) => row.seconds_per_step);
    if (!fit.length) {
      const least = d3.least(decision.candidates, (row) => row.needed_bytes);
      what.replaceChildren(make("p", {}, make("b", {}, "Nothing that was worked out fits. "),
        `The least memory takes ${least.name}: ${bytes(least.needed_bytes)}.`));
      return;
    }
    const [best, ...others] = fit, next = others.find((row) => row.family !== best.family);
    what.replaceChildren(make("p", {}, make("b", {}, `${best.family}: ${best.name}. `),
      `${seconds(best.seconds_per_step)} a step, ${amount(best.samples_per_s)} samples/s, ${percent(best.utilisation)} of the ${decision.model.dtype} peak, ${bytes(best.needed_bytes)} of ${bytes(most)}.`,
      next ? ` Next is ${next.family} (${next.name}), a step takes ${longer(next.seconds_per_step / best.seconds_per_step)} the best’s.` : ""));
  }
  limit.addEventListener("input", draw);
  draw();
}
