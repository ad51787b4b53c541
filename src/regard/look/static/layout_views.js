// Keys that are no sequence: patches of an image, nodes of a graph.

import { element, formatWeight, svgElement, tokenText } from "./dom.js";
import { cssColour } from "./colour.js";

export const imageView = {
  id: "image",
  title: "Image",
  hint: "Where one query looks in the grid. Click a patch or choose a query; arrow keys move from query to query.",
  uses: ["scale"],
  available: (map) => map.layout.kind === "grid",
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    const canvas = element("canvas", { class: "rx-grid", tabIndex: 0, role: "application", "aria-label": "Patches of the image; arrow keys move the query" });
    const name = element("p", { class: "rx-summary", "aria-live": "polite" });
    stage.append(name, canvas);
    const grid = () => app.reader().map.layout;
    const step = (by) => app.set({ query: Math.max(0, Math.min(app.reader().rows - 1, (app.state.query ?? 0) + by)), direction: "out" });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid().columns, ArrowUp: -grid().columns }[event.key];
      if (!by) return;
      event.preventDefault();
      step(by);
    });
    canvas.addEventListener("click", (event) => {
      const { rows, columns, prefix_tokens: before } = grid();
      const [x, y] = [Math.floor((event.offsetX / canvas.clientWidth) * columns), Math.floor((event.offsetY / canvas.clientHeight) * rows)];
      const patch = before + Math.min(y, rows - 1) * columns + Math.min(x, columns - 1);
      app.set(app.reader().rows === app.reader().columns ? { query: patch, key: patch, direction: "out" } : { key: patch });
    });
    async function draw() {
      const reader = app.reader();
      const { rows, columns, prefix_tokens: before } = grid();
      const query = app.state.query ?? 0;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const { values } = await reader.row(app.state.head, query);
      const picture = app.capture().image ? await loadImage(app.capture().image) : null;
      if (turn !== draw.turn) return;
      const patches = values.subarray(before, before + rows * columns);
      const range = { top: Math.max(...patches), signed: patches.some((value) => value < 0) };
      const size = Math.max(1, Math.floor(512 / Math.max(rows, columns)));
      canvas.width = columns * size;
      canvas.height = rows * size;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = false;
      if (picture) context.drawImage(picture, 0, 0, canvas.width, canvas.height);
      for (let n = 0; n < patches.length; n++) {
        const share = range.top ? Math.abs(patches[n]) / range.top : 0;
        context.globalAlpha = picture ? 0.85 * (1 - share) : 1;
        context.fillStyle = picture ? "#000" : cssColour(patches[n], range, app.state.scale === "log" ? "log" : "linear", app.theme());
        context.fillRect((n % columns) * size, Math.floor(n / columns) * size, size, size);
      }
      context.globalAlpha = 1;
      const own = query - before;
      if (reader.rows === reader.columns && own >= 0) {
        context.strokeStyle = app.colours().query;
        context.lineWidth = Math.max(2, size / 10);
        context.strokeRect((own % columns) * size + 1, Math.floor(own / columns) * size + 1, size - 2, size - 2);
      }
      const prefix = before ? `; ${formatWeight(Number(values.subarray(0, before).reduce((a, b) => a + b, 0).toFixed(3)))} on the ${before} token${before > 1 ? "s" : ""} before the grid` : "";
      name.textContent = `Query ${tokenText(reader.queryLabels[query], 40)}: largest weight ${range.top.toFixed(4)}${prefix}`;
    }
    const redraw = () => draw().catch(app.report);
    redraw();
    return { update: redraw };
  },
};

function loadImage(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(() => image);
}

export const graphView = {
  id: "graph",
  title: "Graph",
  hint: "Edges as thick as their weight. Choose a node to see what it attends to.",
  uses: [],
  available: (map) => map.layout.kind === "graph",
  mount(stage, app) {
    const drawing = svgElement("svg", { class: "rx-graph", viewBox: "-1.25 -1.25 2.5 2.5", role: "group", "aria-label": "Nodes of the graph" });
    stage.append(drawing);
    async function draw() {
      const reader = app.reader();
      const { points, edges } = reader.map.layout;
      const { head, query } = app.state;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const values = await reader.values(head);
      if (turn !== draw.turn) return;
      const weight = ([i, j]) => values[i * reader.columns + j] ?? 0;
      const top = edges.reduce((most, edge) => Math.max(most, Math.abs(weight(edge))), 0) || 1;
      const lines = edges.filter(([i, j]) => i !== j && (query === null || i === query)).map(([i, j]) => edgeLine(points[i], points[j], Math.abs(weight([i, j])) / top, query === i, `${reader.queryLabels[i]} → ${reader.keyLabels[j]}: ${formatWeight(weight([i, j]))}`));
      const nodes = points.map(([x, y], n) => node(x, y, n, tokenText(reader.keyLabels[n] ?? String(n), 12), query === n, () => app.set({ query: query === n ? null : n, direction: "out" })));
      const focused = [...drawing.querySelectorAll(".rx-node")].indexOf(document.activeElement);
      drawing.replaceChildren(...lines, ...nodes);
      if (focused >= 0) drawing.querySelectorAll(".rx-node")[focused]?.focus();
    }
    const redraw = () => draw().catch(app.report);
    redraw();
    return { update: redraw };
  },
};

function edgeLine([x1, y1], [x2, y2], share, own, text) {
  const far = Math.hypot(x2 - x1, y2 - y1) || 1;
  const [dx, dy] = [(x2 - x1) / far, (y2 - y1) / far];
  const [tx, ty] = [x2 - 0.075 * dx, y2 - 0.075 * dy];
  const wing = 0.02 + 0.02 * share;
  const d = `M${x1 + 0.075 * dx} ${y1 + 0.075 * dy} L${tx} ${ty} M${tx - wing * (dx - dy)} ${ty - wing * (dy + dx)} L${tx} ${ty} L${tx - wing * (dx + dy)} ${ty - wing * (dy - dx)}`;
  const line = svgElement("path", { d, "stroke-width": (0.004 + 0.022 * share).toFixed(4), "stroke-opacity": (0.15 + 0.85 * share).toFixed(2), class: own ? "rx-own" : "" });
  const title = svgElement("title");
  title.textContent = text;
  line.append(title);
  return line;
}

function node(x, y, n, text, chosen, pick) {
  const group = svgElement("g", { class: chosen ? "rx-node rx-chosen" : "rx-node", tabindex: 0, role: "button", "aria-pressed": String(chosen), "aria-label": `node ${text}`, transform: `translate(${x} ${y})` });
  const label = svgElement("text", { "text-anchor": "middle", dy: "0.025" });
  label.textContent = text;
  group.append(svgElement("circle", { r: 0.07 }), label);
  group.addEventListener("click", pick);
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    pick();
  });
  return group;
}
