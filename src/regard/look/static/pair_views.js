// Matrices side by side that move together: what is allowed beside what is used, and two maps with their difference.

import { choose, element, patternText, percent } from "./dom.js";
import { AllowedLayer, DifferenceLayer, WeightsLayer } from "./layers.js";
import { zoomButtons } from "./matrix_view.js";
import { MatrixPane } from "./pane.js";

const COUNTED = 2 ** 20; // weights: larger maps are not counted

function linkedPanes(stage, app, titled) {
  // titled: [title, layer]; the panes share one view and one cursor.
  const panes = [];
  const onselect = (query, key) => app.set({ query, key });
  for (const [title, layer] of titled) {
    const pane = new MatrixPane(layer, app, { onselect, label: title, onmove: (view) => panes.forEach((other) => other !== pane && other.follow(view)) });
    panes.push(pane);
  }
  const figures = panes.map((pane, n) => element("figure", {}, element("figcaption", {}, titled[n][0]), pane.root));
  stage.append(element("div", { class: `rx-panes rx-panes-${panes.length}` }, figures), zoomButtons(() => panes));
  return {
    panes,
    titles: figures.map((figure) => figure.firstChild),
    show: () => panes.forEach((pane) => pane.setCursor(app.state.query, app.state.key)),
    destroy: () => panes.forEach((pane) => pane.destroy()),
  };
}

export const patternView = {
  id: "pattern",
  title: "Pattern",
  hint: "Left: the pairs that the pattern allows. Right: the weights that the mechanism used of them.",
  uses: ["scale"],
  available: (map) => map.allowed,
  mount(stage, app) {
    const layers = () => [new AllowedLayer(app.reader(), app.state.head), new WeightsLayer(app.reader(), app.state.head, app.state.scale)];
    const facts = element("p", { class: "rx-summary" });
    stage.append(facts);
    const linked = linkedPanes(stage, app, layers().map((layer, n) => [["Allowed", "Used"][n], layer]));
    const count = () => describe(app, facts).catch(app.report);
    linked.show();
    count();
    return {
      panes: linked.panes,
      update(changed) {
        if (["capture", "map", "head", "scale"].some((name) => changed.has(name))) {
          layers().forEach((layer, n) => linked.panes[n].setLayer(layer));
          count();
        }
        if (changed.has("theme")) linked.panes.forEach((pane) => pane.repaint());
        linked.show();
      },
      destroy: linked.destroy,
    };
  },
};

async function describe(app, facts) {
  const reader = app.reader();
  const pairs = reader.rows * reader.columns;
  facts.textContent = patternText(reader.map.pattern);
  if (pairs > COUNTED) return;
  const values = await reader.values(app.state.head);
  let allowed = 0;
  const size = reader.map.tile;
  for (let i = 0; i * size < reader.rows; i++) {
    for (let j = 0; j * size < reader.columns; j++) {
      allowed += (await reader.tile("allowed", app.state.head, 0, i, j)).cells.reduce((sum, cell) => sum + (cell > 0), 0);
    }
  }
  const sorted = Float32Array.from(values, Math.abs).sort().reverse();
  const total = sorted.reduce((a, b) => a + b, 0);
  let [covered, used] = [0, 0];
  while (covered < 0.9 * total && used < sorted.length) covered += sorted[used++];
  facts.textContent = `${patternText(reader.map.pattern)}: ${allowed.toLocaleString("en")} of ${pairs.toLocaleString("en")} pairs are allowed (${percent(allowed / pairs)}); ${percent(used / Math.max(allowed, 1))} of them hold 90 % of the weight.`;
}

function another(app) {
  // Something worth comparing with, of the same size: the same map of another capture, else another head, else another layer.
  const { capture, map, head } = app.state;
  const here = app.capture().maps[map];
  const fits = (one) => one && one.rows === here.rows && one.columns === here.columns;
  const nearest = (count, at, good) => [...Array(count).keys()].filter((n) => n !== at && good(n)).sort((a, b) => Math.abs(a - at) - Math.abs(b - at))[0];
  const otherCapture = nearest(app.captures.length, capture, (n) => fits(app.captures[n].maps[map]));
  if (otherCapture !== undefined) return { capture: otherCapture, map, head };
  if (here.heads.length > 1) return { capture, map, head: head ? head - 1 : 1 };
  const { maps } = app.capture();
  return { capture, map: nearest(maps.length, map, (n) => fits(maps[n])) ?? map, head };
}

export const compareView = {
  id: "compare",
  title: "Compare",
  hint: "The chosen map, another one, and the first minus the second: blue where the first is larger, orange where the second is.",
  uses: ["scale"],
  mount(stage, app) {
    let linked;
    const bar = element("div", { class: "rx-inline" });
    const facts = element("p", { class: "rx-summary" });
    const holder = element("div", { class: "rx-hold" });
    stage.append(bar, facts, holder);
    function other() {
      const { capture, map, head } = { ...another(app), ...app.state.other };
      const chosen = app.captures[capture] ? capture : app.state.capture;
      const number = Math.min(map, app.captures[chosen].maps.length - 1);
      return { capture: chosen, map: number, head: Math.min(head, app.captures[chosen].maps[number].heads.length - 1) };
    }
    function build() {
      const chosen = other();
      const set = (change) => app.set({ other: { ...chosen, ...change } });
      const captures = app.captures.map((one, n) => [n, app.captureName(n)]);
      const maps = app.captures[chosen.capture].maps;
      bar.replaceChildren(
        element("span", { class: "rx-quiet" }, "with"),
        ...(captures.length > 1 ? [choose("Capture", captures, chosen.capture, (n) => set({ capture: Number(n) }))] : []),
        choose("Layer", maps.map((map, n) => [n, map.name]), chosen.map, (n) => set({ map: Number(n) })),
        choose("Head", maps[chosen.map].heads.map((name, n) => [n, name]), chosen.head, (n) => set({ head: Number(n) })),
      );
      linked?.destroy();
      holder.replaceChildren();
      const [a, b] = [app.state, chosen].map((one) => new WeightsLayer(app.reader(one), one.head, app.state.scale));
      const same = a.rows === b.rows && a.columns === b.columns;
      const name = (one) => `${app.captures.length > 1 ? `${app.captureName(one.capture)} · ` : ""}${app.captures[one.capture].maps[one.map].name} · ${app.captures[one.capture].maps[one.map].heads[one.head]}`;
      const titled = [[name(app.state), a], [name(chosen), b]];
      if (same) titled.push(["Difference", new DifferenceLayer(a, b)]);
      linked = linkedPanes(holder, app, titled);
      const itself = chosen.capture === app.state.capture && chosen.map === app.state.map && chosen.head === app.state.head;
      facts.textContent = itself ? "Nothing else here has this size. Choose what to compare with, or let the model read another input." : same ? "" : `Their sizes differ (${a.rows} × ${a.columns} and ${b.rows} × ${b.columns}), so there is no difference to draw.`;
      if (same && !itself && a.rows * a.columns <= COUNTED) distance(a, b).then((text) => (facts.textContent = text), app.report);
      linked.show();
    }
    build();
    return {
      get panes() {
        return linked.panes;
      },
      update(changed) {
        if (["capture", "map", "head", "scale", "other", "captures"].some((name) => changed.has(name))) build();
        if (changed.has("theme")) linked.panes.forEach((pane) => pane.repaint());
        linked.show();
      },
      destroy: () => linked.destroy(),
    };
  },
};

async function distance(a, b) {
  const [x, y] = await Promise.all([a, b].map(({ reader, head }) => reader.values(head)));
  let [apart, most, where] = [0, 0, 0];
  for (let n = 0; n < x.length; n++) {
    const here = Math.abs(x[n] - y[n]);
    apart += here;
    if (here > most) [most, where] = [here, n];
  }
  const [i, j] = [Math.floor(where / a.columns), where % a.columns];
  return `On average ${percent(apart / 2 / Math.max(a.rows, 1))} of a query's weight is elsewhere; the largest difference is ${most.toFixed(3)}, position ${i} to ${j}.`;
}
