// Why a weight is what it is: the score of one pair by dimension, and how much of the value arrives.

import { element, formatWeight, tokenText } from "./dom.js";
import { largest } from "./format.js";

export const whyView = {
  id: "why",
  title: "Why",
  hint: "For one query and one key: what each dimension of q · k adds to the score, and what the weight moves.",
  uses: [],
  available: (map) => map.dimensions > 0,
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    const content = element("div", { class: "rx-why" });
    stage.append(content);
    async function draw() {
      const reader = app.reader();
      const { map } = reader;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const head = map.heads[app.state.head] === "mean" ? 0 : app.state.head;
      if (head !== app.state.head) return app.set({ head });
      const query = app.state.query ?? reader.rows - 1;
      const [queries, keys, norms, bias, row] = await Promise.all([reader.numbers("queries", head), reader.numbers("keys", head), reader.numbers("norms", head), reader.numbers("bias", head, query), reader.row(head, query)]);
      if (turn !== draw.turn) return;
      if (!queries || !keys) {
        content.replaceChildren(element("p", { class: "rx-quiet" }, "This file has no queries and keys: it was made of maps that were captured without them."));
        return;
      }
      const key = app.state.key ?? largest(row.values, 1)[0] ?? 0;
      if (app.state.query === null || app.state.key === null) return app.set({ query, key });
      const size = map.dimensions;
      const [q, k] = [queries.subarray(query * size, (query + 1) * size), keys.subarray(key * size, (key + 1) * size)];
      const how = map.ablated?.[map.heads[head]];
      const scale = map.scale ?? 1;
      const parts = Array.from(q, (value, d) => value * k[d] * scale);
      content.replaceChildren(...score(reader, { query, key, parts, bias: bias?.[key], weight: row.values[key], softmax: map.scale !== null && !how, how }), ...moved(app, reader, row.values, norms, key));
    }
    const redraw = () => draw().catch(app.report);
    redraw();
    return { update: redraw };
  },
};

function score(reader, { query, key, parts, bias, weight, softmax, how }) {
  const sum = parts.reduce((a, b) => a + b, 0);
  const top = Math.max(...parts.map(Math.abs)) || 1;
  const bars = parts.map((part, d) => {
    const bar = element("i", { class: part < 0 ? "rx-negative" : "", style: { height: `${(50 * Math.abs(part)) / top}%` } });
    return element("span", { class: "rx-dimension", title: `dimension ${d}: ${part.toFixed(4)}` }, bar);
  });
  const strongest = largest(parts, 3).map((d) => `${d} (${parts[d].toFixed(2)})`);
  const names = [tokenText(reader.queryLabels[query], 30), tokenText(reader.keyLabels[key], 30)];
  const terms = [["q · k by dimension" + (softmax ? ", scaled" : ""), sum]];
  if (bias !== undefined) terms.push(["bias (positions)", bias]);
  if (softmax && bias !== undefined) terms.push(["score", sum + bias]);
  terms.push([softmax ? "weight after softmax" : "weight", weight]);
  const note = how ? `This head is ablated: its weights are ${how === "zero" ? "zeros" : "uniform"}, whatever its scores.` : softmax ? "The weight is the exponential of the score, divided by the sum over all keys that the query may attend to." : "This mechanism does not take the softmax of q · k, so the products are shown, but do not add up to its score.";
  return [
    element("h2", {}, element("span", { class: "rx-is-query" }, names[0]), " → ", element("span", { class: "rx-is-key" }, names[1])),
    element("div", { class: "rx-dimensions", role: "img", "aria-label": `${parts.length} dimensions add up to ${sum.toFixed(3)}; the largest are ${strongest.join(", ")}` }, bars),
    element("dl", { class: "rx-facts rx-wide" }, terms.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, formatWeight(Number(value.toPrecision(6))))])),
    element("p", { class: "rx-quiet" }, `Largest dimensions: ${strongest.join(", ")}. ${note}`),
  ];
}

function moved(app, reader, weights, norms, chosen) {
  if (!norms) return [];
  const arrives = weights.map((weight, j) => Math.abs(weight) * norms[j]);
  const all = arrives.reduce((a, b) => a + b, 0) || 1;
  const rows = [...new Set([...largest(weights, 6), ...largest(arrives, 6), chosen])].sort((a, b) => arrives[b] - arrives[a]);
  const cells = rows.map((j) =>
    element(
      "tr",
      { class: j === chosen ? "rx-chosen-row" : "" },
      element("th", { scope: "row", dir: "auto" }, element("button", { type: "button", class: "rx-link", onclick: () => app.set({ key: j }) }, tokenText(reader.keyLabels[j]))),
      element("td", { class: "rx-number" }, weights[j].toFixed(4)),
      element("td", { class: "rx-number" }, norms[j].toFixed(3)),
      element("td", { class: "rx-number" }, `${((100 * arrives[j]) / all).toFixed(1)} %`),
    ),
  );
  const head = ["Key", "Weight α", "‖W_o v‖", "Share of Σ α‖W_o v‖"].map((name) => element("th", { scope: "col" }, name));
  return [
    element("h2", {}, "What arrives"),
    element("p", { class: "rx-quiet" }, "A large weight on a small value moves little: the norm of the value after the output projection says how much there is to move (Kobayashi et al. 2020)."),
    element("table", { class: "rx-table" }, element("thead", {}, element("tr", {}, head)), element("tbody", {}, cells)),
  ];
}
