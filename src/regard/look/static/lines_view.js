// Lines from queries to keys, as thick as their weight.

import { element, svgElement, tokenText } from "./dom.js";

const MOST_TOKENS = 256;
const MOST_LINES = 1500;
const STEP = 22; // pixels per token

export const linesView = {
  id: "lines",
  title: "Lines",
  hint: "Queries on the left, keys on the right, a line for each weight that matters. Choose a query to see only its lines.",
  uses: [],
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    let columns;
    function build() {
      const reader = app.reader();
      if (Math.max(reader.rows, reader.columns) > MOST_TOKENS) {
        columns = null;
        stage.replaceChildren(element("p", { class: "rx-quiet" }, `Lines are legible for up to ${MOST_TOKENS} tokens; here are ${Math.max(reader.rows, reader.columns)}. The text and matrix views have no such limit.`));
        return;
      }
      const column = (labels, kind) =>
        element(
          "div",
          { class: `rx-column rx-${kind}` },
          labels.map((text, n) =>
            element("button", { type: "button", dir: "auto", data: { n }, onclick: () => app.set(kind === "queries" ? { query: app.state.query === n ? null : n } : { key: n }), onkeydown: walk }, tokenText(text)),
          ),
        );
      const drawing = svgElement("svg", { class: "rx-lines", "aria-hidden": "true", preserveAspectRatio: "none" });
      columns = [column(reader.queryLabels, "queries"), drawing, column(reader.keyLabels, "keys")];
      stage.replaceChildren(element("div", { class: "rx-columns" }, columns));
    }
    async function draw() {
      if (!columns) return;
      const [queries, drawing, keys] = columns;
      const reader = app.reader();
      const { head, query, key } = app.state;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const values = await reader.values(head);
      if (turn !== draw.turn) return;
      const height = STEP * Math.max(reader.rows, reader.columns);
      drawing.setAttribute("viewBox", `0 0 100 ${height}`);
      drawing.style.height = `${height}px`;
      const wanted = [];
      for (let n = 0; n < values.length; n++) {
        const i = Math.floor(n / reader.columns);
        if (values[n] && (query === null || query === i)) wanted.push(n);
      }
      wanted.sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
      const top = wanted.length ? Math.abs(values[wanted[0]]) : 1;
      const shown = wanted.slice(0, MOST_LINES).filter((n) => Math.abs(values[n]) > 0.02 * top);
      drawing.replaceChildren(
        ...shown.reverse().map((n) => {
          const [i, j] = [Math.floor(n / reader.columns), n % reader.columns];
          const [from, to] = [(i + 0.5) * STEP, (j + 0.5) * STEP];
          const share = Math.abs(values[n]) / top;
          const line = svgElement("path", { d: `M0 ${from} C40 ${from} 60 ${to} 100 ${to}`, "stroke-opacity": (0.12 + 0.88 * share).toFixed(3), "stroke-width": (0.6 + 2.6 * share).toFixed(2), class: values[n] < 0 ? "rx-negative" : query === i ? "rx-own" : "" });
          line.setAttribute("vector-effect", "non-scaling-stroke");
          return line;
        }),
      );
      for (const button of queries.children) button.setAttribute("aria-pressed", String(Number(button.dataset.n) === query));
      for (const button of keys.children) {
        const n = Number(button.dataset.n);
        button.setAttribute("aria-pressed", String(n === key));
        const own = query === null ? 0 : Math.abs(values[query * reader.columns + n]) / top;
        button.style.opacity = query === null ? 1 : 0.7 + 0.3 * Math.min(1, own * 3);
      }
    }
    const redraw = () => draw().catch(app.report);
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

function walk(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!next || !event.target[next]) return;
  event.preventDefault();
  event.target[next].focus();
  event.target[next].click();
}
