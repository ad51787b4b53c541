// Beside every view: the chosen pair and its exact weight, and the keys its query attends to most. It is also what a screen reader reads.

import { element, formatWeight, patternText, percent, readable, tokenText } from "./dom.js";
import { largest } from "./format.js";

const SHOWN = 10;

export class Panel {
  constructor(app) {
    this.app = app;
    this.root = element("aside", { class: "rx-panel", "aria-label": "Details" });
    this.pair = element("div", { class: "rx-pair", "aria-live": "polite" });
    this.list = element("div", { class: "rx-top" });
    this.facts = element("dl", { class: "rx-facts" });
    this.root.append(this.pair, this.list, this.facts);
  }

  async update() {
    const { app } = this;
    const { head, query, key, direction } = app.state;
    const reader = app.reader();
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.#describe(reader);
    const incoming = direction === "in" && key !== null;
    if (query === null && !incoming) {
      this.pair.replaceChildren(element("p", { class: "rx-quiet" }, "Choose a token or a cell to see its weights here."));
      this.list.replaceChildren();
      return;
    }
    const found = incoming ? await reader.column(head, key) : await reader.row(head, query);
    if (turn !== this.turn) return;
    this.#showPair(reader, found, incoming ? query : key);
    this.#showList(reader, found, incoming);
  }

  #showPair(reader, { values, exact }, at) {
    const { query, key, direction } = this.app.state;
    const incoming = direction === "in";
    if (query === null || key === null) {
      const [text, kind] = incoming ? [reader.keyLabels[key], "key"] : [reader.queryLabels[query], "query"];
      this.pair.replaceChildren(element("p", { class: "rx-route" }, element("b", { class: `rx-is-${kind}` }, tokenText(text))));
      return;
    }
    const rank = values.reduce((count, value) => count + (Math.abs(value) > Math.abs(values[at])), 1);
    this.pair.replaceChildren(
      element(
        "p",
        { class: "rx-route" },
        element("b", { class: "rx-is-query", title: `query, position ${query}` }, tokenText(reader.queryLabels[query])),
        element("span", { "aria-label": "attends to" }, " → "),
        element("b", { class: "rx-is-key", title: `key, position ${key}` }, tokenText(reader.keyLabels[key])),
      ),
      element("p", { class: "rx-weight" }, (exact ? "" : "≈ ") + formatWeight(values[at])),
      element("p", { class: "rx-quiet" }, `position ${query} to ${key} · ${ordinal(rank)} of ${values.length}`),
    );
  }

  #showList(reader, { values }, incoming) {
    const labels = incoming ? reader.queryLabels : reader.keyLabels;
    const order = largest(values, SHOWN);
    const top = order.length ? Math.abs(values[order[0]]) : 1;
    const sum = values.reduce((all, value) => all + value, 0);
    const rows = order.map((n) => {
      const bar = element("i", { class: values[n] < 0 ? "rx-bar rx-negative" : "rx-bar", style: { width: `${(100 * Math.abs(values[n])) / top}%` } });
      const select = () => this.app.set(incoming ? { query: n } : { key: n });
      const name = element("span", { class: "rx-name", title: `position ${n}` }, tokenText(labels[n], 22));
      return element("li", {}, element("button", { type: "button", onclick: select }, name, element("span", { class: "rx-track" }, bar), element("span", { class: "rx-number" }, values[n].toFixed(4))));
    });
    const title = incoming ? "Attended by" : "Attends to";
    const shown = order.reduce((all, n) => all + values[n], 0);
    const note = rows.length < values.length && sum > 0 && !incoming ? ` (${percent(shown / sum)} of its weight)` : "";
    this.list.replaceChildren(element("h2", {}, title, element("small", {}, note)), element("ol", {}, ...rows));
  }

  async #describe(reader) {
    const { map } = reader;
    const { head } = this.app.state;
    const pairs = [
      ["Mechanism", map.mechanism],
      ["Pattern", readable(patternText(map.pattern), 60)],
      ["Size", `${map.rows.toLocaleString("en")} ${map.rows === 1 ? "query" : "queries"} × ${map.columns.toLocaleString("en")} ${map.columns === 1 ? "key" : "keys"}`],
      ["Rows", map.normalised ? "sum to one" : "do not sum to one"],
    ];
    const turn = (this.described = (this.described ?? 0) + 1);
    const show = () => this.facts.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    show();
    if (map.deferred) return; // its statistics need all of it: the heads view asks for them
    const numbers = await reader.statistics();
    if (turn !== this.described) return;
    pairs.push(["Entropy", `${numbers.entropy[head].toFixed(2)} nats`]);
    if (!map.cross) pairs.push(["Mean distance", `${numbers.distance[head].toFixed(1)} positions`]);
    pairs.push(["First key", `${percent(numbers.sink[head])} of the weight`]);
    show();
  }
}

function ordinal(n) {
  if (n === 1) return "largest";
  const end = n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${end} largest`;
}
