"use strict";
{
  const work = [];
  if (DATA.decision) work.push(() => candidates(DATA.decision), () => sliders(DATA.decision));
  if (DATA.parallel) work.push(() => deviceGrid(DATA.parallel, DATA.decision.machine.per_node, DATA.decision.candidates[0].stages));
  if (DATA.plan) work.push(() => model(DATA.plan));
  if (DATA.runs) work.push(() => runs(DATA.runs));
  if (DATA.occupied) work.push(() => occupied(DATA.occupied));
  if (DATA.timelines) work.push(() => timelines(DATA.timelines));
  if (DATA.machine) work.push(() => machineTree(DATA.machine));
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      const text = button.previousElementSibling;
      getSelection().selectAllChildren(text);
      const done = document.execCommand("copy");
      byId("copied").textContent = done ? `Copied: ${text.textContent}` : "Selected; press Ctrl-C to copy.";
    });
  }
  const next = () => {
    const step = work.shift();
    if (step) {
      step();
      setTimeout(next);
      return;
    }
    redrawAll();
    markOverflowing();
    document.documentElement.dataset.ready = "true";
    let waiting = null;
    addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redrawAll, 150); });
    addEventListener("beforeprint", () => {
      for (const details of document.querySelectorAll("main > section > details, .words")) details.open = true;
      redrawAll();
    });
  };
  requestAnimationFrame(() => setTimeout(next));
}
