// All layers and heads as thumbnails, with their statistics.

import { element, percent } from "./dom.js";
import { paintTile } from "./colour.js";

const METRICS = {
  entropy: ["Entropy", "nats; 0: one key has all the weight", (v) => v.toFixed(2)],
  distance: ["Mean distance", "positions between a query and what it attends to", (v) => v.toFixed(1)],
  sink: ["First key", "share of the weight on the first key, the usual sink", percent],
};

export const headsView = {
  id: "heads",
  title: "Heads",
  hint: "A row per layer, a column per head, each on its own colour scale. Click one to open its matrix.",
  uses: [],
  mount(stage, app) {
    const list = element("div", { class: "rx-heads" });
    const legend = Object.entries(METRICS).map(([name, [title, about]]) => element("span", { class: `rx-key rx-${name}` }, element("b", {}, title), ` ${about}`));
    stage.append(element("div", { class: "rx-legend" }, legend), list);
    stage.classList.add("rx-scroll");
    let observer;
    function build() {
      observer?.disconnect();
      observer = new IntersectionObserver((seen) => {
        for (const one of seen) {
          if (!one.isIntersecting) continue;
          observer.unobserve(one.target);
          one.target.load();
        }
      });
      list.replaceChildren(...app.capture().maps.map((map, number) => layerRow(app, map, number, observer)));
      mark();
    }
    function mark() {
      for (const button of list.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(button.dataset.at === `${app.state.map}/${app.state.head}`));
      }
    }
    build();
    return {
      update(changed) {
        if (changed.has("capture") || changed.has("theme")) build();
        else mark();
      },
      destroy: () => observer.disconnect(),
    };
  },
};

function layerRow(app, map, number, observer) {
  const cells = map.heads.map((name, head) => {
    const canvas = element("canvas", { class: "rx-thumb", width: 8, height: 8 });
    const label = name === "mean" ? "mean of heads" : `head ${name}`;
    const bars = element("span", { class: "rx-bars" });
    const open = () => app.set({ map: number, head, view: "matrix" });
    const button = element("button", { type: "button", data: { at: `${number}/${head}` }, onclick: open, "aria-label": `${map.name}, ${label}` }, canvas, element("span", { class: "rx-caption" }, name === "mean" ? "mean" : name), bars);
    button.load = () => loadHead(app, number, head, canvas, bars, button, `${map.name}, ${label}`).catch(app.report);
    observer.observe(button);
    return button;
  });
  const about = `${map.mechanism} · ${map.rows} × ${map.columns}`;
  return element("section", { class: "rx-layer" }, element("h2", {}, map.name, element("small", {}, about)), element("div", { class: "rx-row" }, cells));
}

async function loadHead(app, number, head, canvas, bars, button, label) {
  const reader = app.reader({ map: number });
  const numbers = await reader.statistics();
  const tile = await reader.tile("tile", head, reader.levels - 1, 0, 0);
  const range = { top: Math.max(tile.high, -tile.low), signed: tile.low < 0 };
  const picture = paintTile(tile, range, "linear", app.theme());
  canvas.width = picture.width;
  canvas.height = picture.height;
  canvas.getContext("2d").drawImage(picture, 0, 0);
  const most = { entropy: Math.log(Math.max(reader.columns, 2)), distance: Math.max(reader.columns / 2, 1), sink: 1 };
  const told = [];
  for (const [name, [title, about, format]] of Object.entries(METRICS)) {
    const share = Math.min(numbers[name][head] / most[name], 1);
    const value = format(numbers[name][head]);
    told.push(`${title.toLowerCase()} ${value}`);
    bars.append(element("span", { class: `rx-meter rx-${name}`, title: `${title}: ${value} (${about})` }, element("i", { style: { width: `${100 * share}%` } })));
  }
  button.setAttribute("aria-label", `${label}: ${told.join(", ")}`);
  button.title = told.join(" · ");
}
