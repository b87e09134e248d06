"use strict";
/* A machine's trees: each node with the link that leads to it, and that link's load. */
function machineTree(roots) {
  function load(node) {
    if (node.load === undefined) return [];
    const hot = node.load > 0.8;
    return [make("span", {class: "load", role: "img", "aria-label": `busy for ${percent(node.load)} of the step`},
      make("i", {class: hot ? "hot" : "", style: `width:${Math.min(100, 100 * node.load)}%`})),
    make("small", {}, `${percent(node.load)} busy, ${bytes(node.nbytes)}${node.alike ? " at most" : ""}`)];
  }
  function isUsed(node) {
    return node.load === undefined ? !node.children?.length || node.children.some(isUsed) : node.load > 0 || Boolean(node.children?.some(isUsed));
  }
  function line(node) {
    return make("span", {class: "node"}, make("b", {}, node.name + (node.alike ? ` (${node.alike} alike)` : "")),
      make("small", {}, node.kind), node.link ? make("small", {}, node.link) : null, load(node));
  }
  function item(node, depth) {
    if (!node.children?.length) return make("li", {}, line(node));
    return make("li", {}, make("details", {open: depth < 3 && isUsed(node)}, make("summary", {}, line(node)),
      make("ul", {}, node.children.map((child) => item(child, depth + 1)))));
  }
  byId("tree").append(make("ul", {class: "tree"}, roots.map((root) => item(root, 0))));
}
