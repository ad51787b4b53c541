// Source above, target below, and links between them: for translation, and for any two texts of which one attends to the other.

import { element, formatWeight, readable, signed, svgElement, tokenText } from "./dom.js";
import { tokenLine } from "./text_view.js";

const MOST = 512; // tokens per side

export const alignmentView = {
  id: "alignment",
  title: "Alignment",
  hint: "Each query is linked with the keys it attends to. Choose a word to see its links; a thick line is a large weight.",
  uses: [],
  available: (map) => map.cross && map.layout.kind === "sequence" && map.rows <= MOST && map.columns <= MOST,
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    let parts;
    function build() {
      const reader = app.reader();
      const keys = tokenLine(reader.keyLabels, "keys", (n) => app.set({ key: n, query: null, direction: "in" }), "Source: keys");
      const queries = tokenLine(reader.queryLabels, "queries", (n) => app.set({ query: n, key: null, direction: "out" }), "Target: queries");
      const links = svgElement("svg", { class: "rx-links", "aria-hidden": "true" });
      const table = element("table", { class: "rx-table" });
      parts = { keys, queries, links, table };
      const legend = [...shadeValues(queries, reader.queryValues), ...barValues(keys, reader.keyValues)];
      const output = app.capture().output && !app.source.live && app.answers().length < 2 ? element("p", { class: "rx-output" }, app.capture().output) : null;
      stage.replaceChildren(...hypotheses(app), element("div", { class: "rx-align" }, links, element("h2", {}, "Source"), keys, element("h2", { class: "rx-apart" }, "Target"), queries), ...(output ? [output] : []), ...legend, table);
    }
    async function draw() {
      const { keys, queries, links, table } = parts;
      const reader = app.reader();
      const { head, query, key, direction } = app.state;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const values = await reader.values(head);
      if (turn !== draw.turn) return;
      keys.choose(direction === "in" ? key : null);
      queries.choose(direction === "out" ? query : null);
      const frame = links.parentNode.getBoundingClientRect();
      links.setAttribute("width", frame.width);
      links.setAttribute("height", frame.height);
      const middle = (token, bottom) => {
        const box = token.getBoundingClientRect();
        return [box.left + box.width / 2 - frame.left, (bottom ? box.bottom + 2 : box.top - 2) - frame.top];
      };
      const made = [];
      for (let i = 0; i < reader.rows; i++) {
        const row = values.subarray(i * reader.columns, (i + 1) * reader.columns);
        const top = row.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
        for (let j = 0; j < reader.columns; j++) {
          const share = Math.abs(row[j]);
          if (share < 0.08 * (top || 1) && share < 0.5) continue;
          const [x1, y1] = middle(keys.tokens[j], true);
          const [x2, y2] = middle(queries.tokens[i], false);
          const bend = (y1 + y2) / 2;
          const chosen = (direction === "out" && query === i) || (direction === "in" && key === j);
          const faint = !chosen && (direction === "out" ? query : key) !== null; // the others stay in the background
          made.push(svgElement("path", { d: `M${x1} ${y1} C${x1} ${bend} ${x2} ${bend} ${x2} ${y2}`, "stroke-width": (0.5 + 5 * share).toFixed(2), "stroke-opacity": (chosen ? 0.35 + 0.65 * share : (faint ? 0.25 : 1) * (0.1 + 0.75 * share)).toFixed(2), class: chosen ? "rx-own" : "" }));
        }
      }
      links.replaceChildren(...made.sort((a, b) => a.classList.contains("rx-own") - b.classList.contains("rx-own"))); // the chosen ones on top
      best(table, reader, values);
    }
    const redraw = () => draw().catch(app.report);
    build();
    const observer = new ResizeObserver(redraw);
    observer.observe(stage);
    return {
      update(changed) {
        if (changed.has("capture") || changed.has("map")) build();
        redraw();
      },
      destroy: () => observer.disconnect(),
    };
  },
};

function hypotheses(app) {
  // The answers of a beam with their scores; choosing one shows its alignment.
  const numbers = app.answers();
  if (numbers.length < 2) return [];
  const button = (n) => {
    const { score, output } = app.captures[n];
    const chosen = n === app.state.capture;
    return element("li", {}, element("button", { type: "button", "aria-pressed": String(chosen), onclick: () => app.set({ capture: n, query: null, key: null }) }, element("span", { class: "rx-number" }, signed(score, 3)), element("span", { dir: "auto" }, readable(output, 200))));
  };
  return [element("section", { class: "rx-hypotheses", "aria-label": "Hypotheses" }, element("h2", {}, "Hypotheses of the beam", element("small", {}, " score: log-probability, divided by the length penalty")), element("ol", {}, numbers.map(button)))];
}

function shadeValues(line, values) {
  // A value per target token, from 0 to 1: the lower, the deeper its colour. Of p_gen: what is copied stands out.
  if (!values) return [];
  line.tokens.forEach((token, n) => {
    token.style.background = `color-mix(in srgb, var(--low) ${(100 * (1 - values.numbers[n])).toFixed(1)}%, var(--page))`;
    token.title = `${values.name} ${formatWeight(values.numbers[n])}`;
  });
  return [element("p", { class: "rx-values" }, element("span", { class: "rx-token rx-low" }, `${values.name} 0`), ` … `, element("span", { class: "rx-token" }, `${values.name} 1`))];
}

function barValues(line, values) {
  // A value per source token as a bar under it.
  if (!values) return [];
  const top = Math.max(1, ...values.numbers);
  line.tokens.forEach((token, n) => {
    const share = (100 * values.numbers[n]) / top;
    token.append(element("i", { class: "rx-under" }));
    token.lastChild.style.width = `${share.toFixed(1)}%`;
    token.title = `${values.name} ${formatWeight(values.numbers[n])}`;
  });
  return [element("p", { class: "rx-values" }, `Bars under the source: ${values.name}; a full one is ${top.toFixed(2)}`)];
}

function best(table, reader, values) {
  // The same in words.
  const rows = reader.queryLabels.map((label, i) => {
    const row = values.subarray(i * reader.columns, (i + 1) * reader.columns);
    const at = row.indexOf(Math.max(...row));
    return element("tr", {}, element("th", { scope: "row", dir: "auto" }, tokenText(label)), element("td", { dir: "auto" }, tokenText(reader.keyLabels[at])), element("td", { class: "rx-number" }, formatWeight(Number(row[at].toFixed(4)))));
  });
  const head = ["Target", "Attends most to", "Weight"].map((name) => element("th", { scope: "col" }, name));
  table.replaceChildren(element("caption", {}, "Strongest link of each target token"), element("thead", {}, element("tr", {}, head)), element("tbody", {}, rows));
}
