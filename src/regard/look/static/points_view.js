// Keys with a place in the plane: points of a set, or nodes of a graph. Edges are as thick as their weight; points are coloured by what the
// chosen query gives them.

import { choose, element, formatWeight, svgElement, tokenText } from "./dom.js";
import { cssColour, inkOn } from "./colour.js";

const MOST_EDGES = 400; // without a chosen query: the heaviest
const MOST_PAIRS = 2 ** 20; // of maps that are read as a whole
const NAMED = 40; // points: names of more would cover each other

function planeView(id, title, hint, available, read) {
  // `read(app)`: {points, edges}; edges are the pairs that may be drawn, or null for all.
  return {
    id,
    title,
    hint,
    uses: [],
    available,
    mount(stage, app) {
      const bar = element("div", { class: "rx-inline", hidden: true });
      const drawing = svgElement("svg", { class: "rx-graph", viewBox: "-1.25 -1.25 2.5 2.5", role: "group", "aria-label": title });
      drawing.addEventListener("keydown", (event) => walkNodes(event, drawing));
      stage.append(bar, drawing);
      async function draw() {
        const reader = app.reader();
        const { head, query } = app.state;
        const { points, edges } = read(app);
        const own = reader.rows === reader.columns; // queries are points, too
        const turn = (draw.turn = (draw.turn ?? 0) + 1);
        const row = query === null ? null : (await reader.row(head, query)).values;
        const all = row || reader.rows * reader.columns > MOST_PAIRS || !own ? null : await reader.values(head);
        if (turn !== draw.turn) return;
        bar.hidden = own;
        if (!own) bar.replaceChildren(choose("Query", [["", "choose one"], ...reader.queryLabels.map((name, n) => [n, tokenText(name)])], query ?? "", (n) => app.set({ query: n === "" ? null : Number(n), direction: "out" })));
        const pairs = own ? chosenPairs({ edges, row, all, query, columns: reader.columns }) : [];
        const top = pairs.reduce((most, [, , weight]) => Math.max(most, Math.abs(weight)), 0) || 1;
        const radius = Math.max(0.012, Math.min(0.07, 0.28 / Math.sqrt(points.length)));
        const lines = pairs.map(([i, j, weight]) => edgeLine(points[i], points[j], weight, Math.abs(weight) / top, radius, query === i, `${reader.queryLabels[i]} → ${reader.keyLabels[j]}: ${formatWeight(weight)}`));
        const range = row && { top: row.reduce((most, value) => Math.max(most, Math.abs(value)), 0), signed: row.some((value) => value < 0) };
        const pick = (n) => app.set(own ? { query: query === n ? null : n, key: null, direction: "out" } : { key: n });
        const nodes = points.map((point, n) => node(point, n, radius, { name: tokenText(reader.keyLabels[n] ?? String(n), 12), named: points.length <= NAMED, chosen: own ? query === n : app.state.key === n, weight: row?.[n], range, theme: app.theme(), pick }));
        const focused = [...drawing.querySelectorAll(".rx-node")].indexOf(document.activeElement);
        drawing.replaceChildren(...lines.reverse(), ...nodes);
        const entry = nodes[focused >= 0 ? focused : own && query !== null ? query : 0];
        entry?.setAttribute("tabindex", 0); // one of them in the tab order; arrow keys move between them
        if (focused >= 0) entry?.focus();
      }
      const redraw = () => draw().catch(app.report);
      redraw();
      return { update: redraw };
    },
  };
}

export const graphView = planeView("graph", "Graph", "Nodes and edges, as thick as their weight. Choose a node to see what it attends to.", (map) => map.layout.kind === "graph", (app) => {
  const { layout, points } = app.reader().map;
  return { points: points ? app.capture().points : layout.points, edges: layout.edges };
});

export const pointsView = planeView("points", "Points", "Keys at their places in the plane. Choose a point: the others are coloured by how much it attends to them.", (map) => map.points && map.layout.kind !== "graph", (app) => ({ points: app.capture().points, edges: null }));

function chosenPairs({ edges, row, all, query, columns }) {
  // [query, key, weight] to draw, heaviest first.
  const weight = (i, j) => (row ? (i === query ? row[j] : 0) : (all?.[i * columns + j] ?? 0));
  let pairs;
  if (edges) pairs = edges.filter(([i]) => !row || i === query).map(([i, j]) => [i, j, weight(i, j)]);
  else if (row) pairs = Array.from(row, (value, j) => [query, j, value]);
  else pairs = Array.from(all ?? [], (value, n) => [Math.floor(n / columns), n % columns, value]);
  pairs = pairs.filter(([i, j, value]) => i !== j && (value || edges)).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
  const most = pairs.length ? Math.abs(pairs[0][2]) : 0;
  return edges ? pairs : pairs.slice(0, MOST_EDGES).filter(([, , value]) => Math.abs(value) >= 0.02 * most);
}

function edgeLine([x1, y1], [x2, y2], weight, share, radius, own, text) {
  const far = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [dx, dy] = [(x2 - x1) / far, (y2 - y1) / far];
  const rim = 1.08 * radius;
  const [tx, ty] = [x2 - rim * dx, y2 - rim * dy];
  const wing = Math.min(0.02 + 0.02 * share, 0.6 * radius);
  const d = `M${x1 + rim * dx} ${y1 + rim * dy} L${tx} ${ty} M${tx - wing * (dx - dy)} ${ty - wing * (dy + dx)} L${tx} ${ty} L${tx - wing * (dx + dy)} ${ty - wing * (dy - dx)}`;
  const line = svgElement("path", { d, "stroke-width": (0.003 + 0.3 * radius * share).toFixed(4), "stroke-opacity": (0.12 + 0.88 * share).toFixed(2), class: weight < 0 ? "rx-negative" : own ? "rx-own" : "" });
  const title = svgElement("title");
  title.textContent = text;
  line.append(title);
  return line;
}

function node([x, y], n, radius, { name, named, chosen, weight, range, theme, pick }) {
  const about = weight === undefined ? name : `${name}: ${formatWeight(weight)}`;
  const group = svgElement("g", { class: chosen ? "rx-node rx-chosen" : "rx-node", tabindex: -1, role: "button", "aria-pressed": String(chosen), "aria-label": about, transform: `translate(${x} ${y})` });
  const disc = svgElement("circle", { r: radius });
  if (weight !== undefined) disc.style.fill = cssColour(weight, range, "linear", theme);
  const title = svgElement("title");
  title.textContent = about;
  group.append(disc, title);
  if (named) {
    const label = svgElement("text", { "text-anchor": "middle", dy: "0.025" });
    label.textContent = name;
    if (weight !== undefined) label.style.fill = inkOn(weight, range, "linear", theme);
    group.append(label);
  }
  group.addEventListener("click", () => pick(n));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick(n);
  });
  return group;
}

function walkNodes(event, drawing) {
  const nodes = [...drawing.querySelectorAll(".rx-node")];
  const at = nodes.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: nodes.length - 1 }[event.key];
  if (at < 0 || to === undefined || !nodes[to]) return;
  event.preventDefault();
  nodes[at].setAttribute("tabindex", -1);
  nodes[to].setAttribute("tabindex", 0);
  nodes[to].focus();
}
