// The text itself: click a token, and the others are shaded by their weight.

import { element, formatWeight, tokenText } from "./dom.js";
import { cssColour, inkOn } from "./colour.js";

export function tokenLine(labels, kind, onpick, label) {
  // Tokens to click or to walk through with the arrow keys; only one of them is in the tab order.
  const tokens = labels.map((text, n) => element("span", { class: "rx-token", dir: "auto", role: "option", tabIndex: n ? -1 : 0, data: { n }, "aria-selected": "false" }, tokenText(text)));
  const line = element("div", { class: `rx-line rx-${kind}`, role: "listbox", "aria-label": label, "aria-orientation": "horizontal" }, tokens);
  const pick = (n) => {
    if (n >= 0 && n < tokens.length) onpick(n);
  };
  line.addEventListener("click", (event) => event.target.dataset.n !== undefined && pick(Number(event.target.dataset.n)));
  line.addEventListener("keydown", (event) => {
    if (event.target.dataset.n === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = Number(event.target.dataset.n);
    const to = { ArrowRight: n + 1, ArrowDown: n + 1, ArrowLeft: n - 1, ArrowUp: n - 1, Home: 0, End: tokens.length - 1, Enter: n, " ": n }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    pick(to);
    tokens[to]?.focus();
  });
  line.tokens = tokens;
  line.choose = (n) => {
    for (const token of line.querySelectorAll(".rx-chosen")) token.classList.remove("rx-chosen"), token.setAttribute("aria-selected", "false");
    if (n === null || !tokens[n]) return;
    for (const token of line.querySelectorAll('[tabindex="0"]')) token.tabIndex = -1;
    tokens[n].tabIndex = 0;
    tokens[n].classList.add("rx-chosen");
    tokens[n].setAttribute("aria-selected", "true");
  };
  line.shade = (values, range, scale, theme, weights = values) => {
    tokens.forEach((token, n) => {
      if (!values) {
        token.style.background = token.style.color = "";
        token.title = "";
        return;
      }
      token.style.background = values[n] ? cssColour(values[n], range, scale, theme) : "";
      token.style.color = values[n] ? inkOn(values[n], range, scale, theme) : "";
      token.title = formatWeight(weights[n]);
    });
  };
  return line;
}

const LONGEST_BAR = 60; // pixels; style.css leaves room for it

function sentences(line, spans) {
  // Tokens grouped by the spans of a tree, with a bar for the weight of each sentence. Returns the shades of its words: weight / √weight of the
  // sentence, so that the words of a light sentence can still be seen.
  const groups = spans.map(([first, end]) => element("p", { class: "rx-sentence" }, element("i", { class: "rx-share" }), ...line.tokens.slice(first, end)));
  line.replaceChildren(...groups);
  return (values) => {
    const sums = spans.map(([first, end]) => values.subarray(first, end).reduce((a, b) => a + Math.abs(b), 0));
    const top = Math.max(...sums) || 1;
    const shades = new Float32Array(values.length);
    groups.forEach((group, n) => {
      group.firstChild.style.width = `${(LONGEST_BAR * sums[n]) / top}px`;
      group.firstChild.title = `weight of the sentence ${formatWeight(sums[n])}`;
      for (let at = spans[n][0]; at < spans[n][1]; at++) shades[at] = sums[n] ? values[at] / Math.sqrt(sums[n]) : 0;
    });
    return shades;
  };
}

export const textView = {
  id: "text",
  title: "Text",
  hint: "Click a token, or walk through them with the arrow keys: the others are shaded by how much it attends to them, or they to it.",
  uses: ["scale", "direction"],
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    let queries, keys, shadeSentences;
    function build() {
      const reader = app.reader();
      const one = !reader.map.cross && reader.rows === reader.columns;
      const pickQuery = (n) => app.set(app.state.direction === "in" && one ? { key: n } : { query: n, direction: "out" });
      const pickKey = (n) => app.set({ key: n, direction: "in" });
      keys = tokenLine(reader.keyLabels, "keys", one ? pickQuery : pickKey, one ? "Tokens" : "Keys");
      queries = one ? keys : tokenLine(reader.queryLabels, "queries", pickQuery, "Queries");
      const spans = reader.map.layout.spans;
      shadeSentences = spans && spans.at(-1)[1] === reader.columns ? sentences(keys, spans) : (values) => values;
      const titled = (title, line) => [element("h2", {}, title), line];
      stage.replaceChildren(...(one ? [keys] : [...titled("Queries", queries), ...titled("Keys", keys)]));
    }
    async function shade() {
      const { head, query, key, direction, scale } = app.state;
      const reader = app.reader();
      const incoming = direction === "in";
      const at = incoming ? key : query;
      const turn = (shade.turn = (shade.turn ?? 0) + 1);
      if (queries !== keys) queries.choose(query), keys.choose(key);
      else keys.choose(at), keys.classList.toggle("rx-keys", incoming);
      if (at === null) return;
      const { values } = incoming ? await reader.column(head, at) : await reader.row(head, at);
      if (turn !== shade.turn) return;
      const [lit, unlit] = incoming ? [queries, keys] : [keys, queries];
      const shades = lit === keys ? shadeSentences(values) : values;
      const top = scale === "unit" ? 1 : shades.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const range = { top, signed: values.some((value) => value < 0) };
      if (unlit !== lit) unlit.shade(null);
      lit.shade(shades, range, scale === "log" ? "log" : "linear", app.theme(), values);
    }
    build();
    if (app.state.query === null) app.set({ query: app.reader().rows - 1 });
    shade().catch(app.report);
    return {
      update(changed) {
        if (changed.has("capture") || changed.has("map")) build();
        shade().catch(app.report);
      },
    };
  },
};
