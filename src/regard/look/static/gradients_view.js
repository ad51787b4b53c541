// Attention beside gradients: what a query attends to, and what the output that it computes depended on, to first order.

import { choose, element, formatWeight, signed, tokenText } from "./dom.js";
import { largest } from "./format.js";
import { PatchPicture, loadImage } from "./image_view.js";
import { tokenLine } from "./text_view.js";

const MOST_KEYS = 12; // in the table, of each kind
const MEASURES = [["norm", "norm"], ["times", "gradient × input"]];

export const gradientsView = {
  id: "gradients",
  title: "Gradients",
  hint: "First what the query attends to, then how much the log-probability of its output changes with each input. If both agree, the picture says more.",
  uses: [],
  always: true, // where there are none, it says why
  available: (map) => (map.outputs ?? null) !== null,
  missing(app) {
    return app.capture().no_gradients ?? "The queries of this layer compute no output of their own, as those of an encoder; choose another layer.";
  },
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    let parts;
    const query = () => {
      // A class token decides, and a mask is what is predicted.
      const { map, queryLabels, rows } = app.reader();
      const masked = queryLabels.indexOf("[MASK]");
      return app.state.query ?? (map.layout.prefix_tokens ? 0 : masked >= 0 ? masked : rows - 1);
    };
    function build() {
      const reader = app.reader();
      const outputs = app.capture().labels[reader.map.outputs];
      const single = outputs.length === 1;
      const pickKey = (n) => app.set({ key: n });
      const line = (title) => ({ title: element("h2", {}), show: showLine(tokenLine(reader.keyLabels, "keys", pickKey, title), app) });
      const grid = (title) => ({ title: element("h2", {}), show: showGrid(new PatchPicture(app, title, (patch) => pickKey(reader.map.layout.prefix_tokens + patch)), app) });
      const make = reader.map.layout.kind === "grid" ? grid : line;
      const bar = element("div", { class: "rx-inline-plain" });
      const queries = reader.rows === 1 ? null : tokenLine(single ? reader.queryLabels : outputs, "queries", (n) => app.set({ query: n, key: null, direction: "out" }), single ? "Queries" : "Outputs");
      parts = { outputs, queries, bar, attention: make("Attention"), gradient: make("Gradient"), agreement: element("p", { class: "rx-summary", "aria-live": "polite" }), table: element("table", { class: "rx-table" }) };
      const both = element("div", { class: make === grid ? "rx-beside" : "" }, [parts.attention, parts.gradient].map(({ title, show }) => element("section", {}, title, show.root)));
      stage.replaceChildren(bar, ...(queries ? [element("h2", {}, single ? "Query" : "Output"), queries] : []), parts.agreement, both, parts.table);
    }
    async function draw() {
      const reader = app.reader();
      const { head, measure = "norm" } = app.state;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const i = query();
      parts.agreement.textContent = "Computing gradients …";
      const [row, found] = await Promise.all([reader.row(head, i), reader.numbers("gradients", i)]);
      if (turn !== draw.turn) return;
      if (!found) throw new Error("This file has no gradients.");
      const [logp, size] = [found[0], reader.columns];
      const gradients = measure === "norm" ? found.subarray(1, 1 + size) : found.subarray(1 + size);
      const output = tokenText(parts.outputs[parts.outputs.length === 1 ? 0 : i]);
      parts.bar.replaceChildren(choose("Measure", MEASURES, measure, (name) => app.set({ measure: name })));
      parts.queries?.choose(i);
      parts.attention.title.textContent = `Attention of ${tokenText(reader.queryLabels[i])}, ${headName(reader.map, head)}`;
      parts.gradient.title.textContent = `${measure === "norm" ? "Norm of the gradient" : "Gradient × input"} of log p(${output}) = ${signed(logp, 3)}`;
      parts.attention.show(row.values);
      parts.gradient.show(gradients);
      const used = Array.from(row.values.keys()).filter((j) => Number.isFinite(gradients[j]) && (row.values[j] || gradients[j]));
      parts.agreement.textContent = agreement(used.map((j) => Math.abs(row.values[j])), used.map((j) => Math.abs(gradients[j])));
      fillTable(parts.table, app, reader, row.values, gradients, measure);
    }
    const redraw = () => draw().catch((error) => ((parts.agreement.textContent = ""), app.report(error)));
    build();
    redraw();
    return {
      update(changed) {
        if (changed.has("capture") || changed.has("map")) build();
        redraw();
      },
    };
  },
};

function headName(map, head) {
  return map.heads[head] === "mean" ? "mean of heads" : `head ${map.heads[head]}`;
}

function showLine(line, app) {
  const show = (values) => {
    const finite = values.map((value) => (Number.isFinite(value) ? value : 0));
    const top = finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    line.choose(app.state.key);
    line.shade(finite, { top, signed: finite.some((value) => value < 0) }, "linear", app.theme());
  };
  return Object.assign(show, { root: line });
}

function showGrid(picture, app) {
  const show = async (values) => {
    const { layout } = app.reader().map;
    const image = app.capture().image ? await loadImage(app.capture().image) : null;
    picture.draw(layout, values.subarray(layout.prefix_tokens), image, app.state.key === null ? -1 : app.state.key - layout.prefix_tokens);
  };
  return Object.assign((values) => show(values).catch(app.report), { root: picture.canvas });
}

export function kendall(x, y) {
  // τ-b: 1 if both have the same order, −1 if the opposite one, 0 if neither says anything of the other.
  let [concordant, tiesX, tiesY] = [0, 0, 0];
  for (let a = 0; a < x.length; a++) {
    for (let b = 0; b < a; b++) {
      const [dx, dy] = [Math.sign(x[a] - x[b]), Math.sign(y[a] - y[b])];
      concordant += dx * dy;
      tiesX += dx === 0;
      tiesY += dy === 0;
    }
  }
  const pairs = (x.length * (x.length - 1)) / 2;
  return concordant / Math.sqrt((pairs - tiesX) * (pairs - tiesY));
}

function agreement(attention, gradients) {
  if (attention.length < 3) return "Too few keys to compare their order.";
  const tau = kendall(attention, gradients);
  if (!Number.isFinite(tau)) return "All keys have the same weight or the same gradient, so their order cannot be compared.";
  return `Agreement of the two orders, Kendall's τ over ${attention.length} keys: ${signed(tau, 2)} (1: the same order, 0: unrelated).`;
}

function fillTable(table, app, reader, weights, gradients, measure) {
  const finite = gradients.map((value) => (Number.isFinite(value) ? value : 0));
  const keys = [...new Set([...largest(weights, MOST_KEYS), ...largest(finite, MOST_KEYS)])].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, 2 * MOST_KEYS);
  const rows = keys.map((j) =>
    element(
      "tr",
      { class: j === app.state.key ? "rx-chosen-row" : "" },
      element("th", { scope: "row", dir: "auto" }, tokenText(reader.keyLabels[j])),
      element("td", { class: "rx-number" }, weights[j].toFixed(4)),
      element("td", { class: "rx-number" }, Number.isFinite(gradients[j]) ? formatWeight(Number(gradients[j].toPrecision(4))) : "no input"),
    ),
  );
  const head = ["Key", "Weight", measure === "norm" ? "Norm of the gradient" : "Gradient × input"].map((name) => element("th", { scope: "col" }, name));
  table.replaceChildren(element("caption", {}, "Keys with the largest weights or gradients"), element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows));
}
