// Time against length, both logarithmic: the chosen mechanism, exact attention, and all others faint.

import { element, svgElement } from "./dom.js";

const NAMES = { forward: "forward", train: "forward + backward", step: "one step of decoding" };
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [400, 220, 46, 30, 8, 12];

export function costChart(costs, name, operation) {
  // An <svg>, and in words what it shows. Null where the mechanism was not measured.
  const group = costs.groups.find(({ seconds }) => seconds[name]?.[operation].some((s) => s !== null));
  if (!group) return null;
  const curves = Object.entries(group.seconds).map(([each, of]) => [each, of[operation]]);
  const all = curves.flatMap(([, curve]) => curve).filter((s) => s !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)].map(Math.log10);
  const [first, last] = [costs.lengths[0], costs.lengths.at(-1)].map(Math.log2);
  const x = (length) => LEFT + ((WIDTH - LEFT - RIGHT) * (Math.log2(length) - first)) / Math.max(last - first, 1e-9);
  const y = (seconds) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * (Math.log10(seconds) - low)) / Math.max(high - low, 1e-9);
  const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "lx-cost", role: "img" });
  for (let power = Math.ceil(low - 1e-9); power <= high; power++) {
    svg.append(svgElement("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(10 ** power), y2: y(10 ** power), class: "lx-gridline" }), label(LEFT - 6, y(10 ** power) + 4, milliseconds(10 ** power), "end"));
  }
  for (const length of costs.lengths) svg.append(label(x(length), HEIGHT - 10, length.toLocaleString("en"), length === costs.lengths.at(-1) ? "end" : "middle"));
  const line = (curve, style) => svgElement("path", { d: path(curve, costs.lengths, x, y), class: style });
  for (const [each, curve] of curves) if (each !== name && each !== "softmax") svg.append(line(curve, "lx-other"));
  const exact = group.seconds.softmax?.[operation];
  if (exact) svg.append(line(exact, "lx-exact"));
  const mine = group.seconds[name][operation];
  if (name !== "softmax") svg.append(line(mine, "lx-mine"));
  mine.forEach((s, n) => s !== null && svg.append(svgElement("circle", { cx: x(costs.lengths[n]), cy: y(s), r: 3, class: name === "softmax" ? "lx-exact-dot" : "lx-dot" })));
  const text = inWords(costs, name, operation, group, mine, exact);
  svg.setAttribute("aria-label", text);
  return { svg, text };
}

function inWords(costs, name, operation, group, mine, exact) {
  const n = mine.findLastIndex((s) => s !== null);
  const ratio = name !== "softmax" && exact?.[n] ? `, ${(mine[n] / exact[n]).toPrecision(2)} × exact attention` : "";
  return `${costs.lengths[n].toLocaleString("en")} tokens, ${NAMES[operation]}${group.causal ? ", causal" : ", not causal"}: ${milliseconds(mine[n])}${ratio}.`;
}

export function operations(costs, name) {
  return Object.entries(NAMES).filter(([operation]) => costs.groups.some(({ seconds }) => seconds[name]?.[operation].some((s) => s !== null)));
}

function path(curve, lengths, x, y) {
  let drawn = "";
  curve.forEach((s, n) => {
    if (s !== null) drawn += `${drawn ? "L" : "M"}${x(lengths[n]).toFixed(1)} ${y(s).toFixed(1)}`;
  });
  return drawn || "M0 0";
}

function label(x, y, text, anchor) {
  const made = svgElement("text", { x, y, "text-anchor": anchor, class: "lx-tick" });
  made.textContent = text;
  return made;
}

function milliseconds(seconds) {
  if (seconds >= 0.9995) return `${Number(seconds.toPrecision(3))} s`;
  return seconds >= 1e-3 ? `${Number((1e3 * seconds).toPrecision(3))} ms` : `${Number((1e6 * seconds).toPrecision(3))} µs`;
}

export function costLegend() {
  return element("p", { class: "lx-legend" }, element("span", { class: "lx-key-mine" }, "this"), element("span", { class: "lx-key-exact" }, "exact attention"), element("span", { class: "lx-key-other" }, "all others"));
}
