// The matrix: rows attend to columns.

import { element } from "./dom.js";
import { WeightsLayer } from "./layers.js";
import { MatrixPane } from "./pane.js";

export function zoomButtons(panes) {
  const all = (change) => () => panes().forEach(change);
  const button = (text, label, change) => element("button", { type: "button", class: "rx-icon", "aria-label": label, title: label, onclick: all(change) }, text);
  return element(
    "div",
    { class: "rx-zoom" },
    button("+", "Zoom in", (pane) => pane.zoom(1.5)),
    button("−", "Zoom out", (pane) => pane.zoom(1 / 1.5)),
    button("Fit", "Fit: show all", (pane) => pane.fit()),
  );
}

export const matrixView = {
  id: "matrix",
  title: "Matrix",
  hint: "A row per query, a column per key. Drag to move, scroll to zoom; arrow keys move the cursor, + and − zoom, 0 shows all.",
  uses: ["scale"],
  mount(stage, app) {
    const layer = () => new WeightsLayer(app.reader(), app.state.head, app.state.scale);
    const pane = new MatrixPane(layer(), app, { onselect: (query, key) => app.set({ query, key }), label: "Attention weights; arrow keys move from cell to cell" });
    stage.append(pane.root, zoomButtons(() => [pane]));
    const show = () => pane.setCursor(app.state.query, app.state.key);
    show();
    return {
      pane,
      update(changed) {
        if (["capture", "map", "head", "scale"].some((name) => changed.has(name))) pane.setLayer(layer());
        if (changed.has("theme")) pane.repaint();
        show();
      },
      destroy: () => pane.destroy(),
    };
  },
};
