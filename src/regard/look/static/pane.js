// A matrix on a canvas: pan, zoom, a cursor for pointer and keyboard. It draws layers (layers.js) and knows nothing of attention.

import { element, formatWeight, tokenText } from "./dom.js";
import { paintTile } from "./colour.js";
import { drawGrid, drawLabels, drawNumbers, drawOutline, gutterSizes } from "./pane_labels.js";

const BUTTONS = 48; // pixels at the bottom, where the zoom buttons are
const LARGEST_CELL = 72;

export class MatrixPane {
  // options: label (for screen readers), onselect(i, j), onmove(view): after a pan or zoom, so that panes can move together
  constructor(layer, app, options = {}) {
    Object.assign(this, { layer, app, options, cursor: null, hover: null, painted: new Map(), pending: new Set(), fitted: true });
    this.canvas = element("canvas", {
      class: "rx-canvas",
      tabIndex: 0,
      role: "application",
      "aria-roledescription": "attention matrix",
      "aria-label": options.label ?? "attention weights",
      onkeydown: (event) => this.#key(event),
      onpointerdown: (event) => this.#down(event),
      onpointermove: (event) => this.#move(event),
      onpointerup: (event) => this.#up(event),
      onpointercancel: (event) => this.#up(event),
      onpointerleave: () => this.#point(null),
      onfocus: () => this.draw(),
      onblur: () => this.draw(),
    });
    this.canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.tip = element("div", { class: "rx-tip", hidden: true });
    this.root = element("div", { class: "rx-pane" }, this.canvas, this.tip);
    this.pointers = new Map();
    this.layer.onrange = () => this.repaint();
    this.view = { cell: 1, x: 0, y: 0 }; // pixels per cell; the cell at the upper left corner
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.root);
  }

  destroy() {
    this.observer.disconnect();
  }

  setLayer(layer) {
    const same = layer.rows === this.layer.rows && layer.columns === this.layer.columns;
    this.layer = layer;
    this.layer.onrange = () => this.repaint();
    this.painted.clear();
    [this.left, this.top] = this.margin = gutterSizes(this);
    if (!same) this.open();
    else this.draw();
  }

  repaint() {
    this.painted.clear();
    this.draw();
  }

  // -- geometry ------------------------------------------------------------------------------------------------------

  #resize() {
    const { width, height } = this.root.getBoundingClientRect();
    if (!width || !height) return;
    this.ratio = window.devicePixelRatio || 1;
    this.width = Math.floor(width);
    this.height = Math.floor(height);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    [this.left, this.top] = this.margin = gutterSizes(this);
    if (this.fitted) this.open();
    else this.draw();
  }

  open() {
    // All of it; of a map that is computed while it is read, its beginning, which is there at once.
    this.fit();
    if (this.layer.reader.map.deferred && this.view.cell < 1) this.#place({ cell: 1, x: 0, y: 0 }, false);
  }

  fit() {
    if (!this.width) return;
    [this.left, this.top] = this.margin;
    const [across, down] = [this.width - this.left - 4, this.height - this.top - BUTTONS];
    let cell = Math.min(across / this.layer.columns, down / this.layer.rows, LARGEST_CELL);
    if (cell > 4) cell = Math.floor(cell * this.ratio) / this.ratio;
    this.left += Math.floor(Math.max(0, across - cell * this.layer.columns) / 2); // in the middle, as long as all of it fits
    this.top += Math.floor(Math.max(0, down - cell * this.layer.rows) / 3);
    this.view = { cell, x: 0, y: 0 };
    this.fitted = true;
    this.smallest = Math.min(cell, 1);
    this.draw();
  }

  zoom(factor, x = this.left + (this.width - this.left) / 2, y = this.top + (this.height - this.top) / 2) {
    const cell = Math.min(Math.max(this.view.cell * factor, this.smallest), LARGEST_CELL);
    const [i, j] = [this.view.y + (y - this.top) / this.view.cell, this.view.x + (x - this.left) / this.view.cell];
    this.#place({ cell, x: j - (x - this.left) / cell, y: i - (y - this.top) / cell });
  }

  #place(view, tell = true) {
    if (this.fitted) {
      // From the middle of the stage to its corner, without a jump.
      view.x -= (this.left - this.margin[0]) / view.cell;
      view.y -= (this.top - this.margin[1]) / view.cell;
      [this.left, this.top] = this.margin;
    }
    const keep = (from, all, room) => Math.max(Math.min(0, (all - room) / 2), Math.min(from, Math.max(0, all - room)));
    view.x = keep(view.x, this.layer.columns, (this.width - this.margin[0]) / view.cell);
    view.y = keep(view.y, this.layer.rows, (this.height - this.margin[1]) / view.cell);
    this.view = view;
    this.fitted = false;
    this.draw();
    if (tell) this.options.onmove?.(view);
  }

  follow(view) {
    this.#place({ ...view }, false);
  }

  cellAt(x, y) {
    const j = Math.floor(this.view.x + (x - this.left) / this.view.cell);
    const i = Math.floor(this.view.y + (y - this.top) / this.view.cell);
    const inside = i >= 0 && j >= 0 && i < this.layer.rows && j < this.layer.columns;
    return inside && x >= this.margin[0] && y >= this.margin[1] ? [i, j] : null;
  }

  centreOf(i, j) {
    return [this.left + (j + 0.5 - this.view.x) * this.view.cell, this.top + (i + 0.5 - this.view.y) * this.view.cell];
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  draw() {
    this.scheduled ??= requestAnimationFrame(() => {
      this.scheduled = undefined;
      if (this.width && this.root.isConnected) this.#paint();
    });
  }

  #paint() {
    const context = this.canvas.getContext("2d");
    const { cell, x, y } = this.view;
    const colours = this.app.colours();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = colours.stage;
    context.fillRect(0, 0, this.width, this.height);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.width - this.left, this.height - this.top);
    context.clip();
    context.imageSmoothingEnabled = false;
    const level = Math.max(0, Math.min(this.layer.levels - 1, Math.floor(-Math.log2(cell * this.ratio) + 0.01)));
    const block = 2 ** level;
    const side = this.layer.tileSize * block;
    const last = [y + (this.height - this.top) / cell, x + (this.width - this.left) / cell];
    for (let i = Math.max(0, Math.floor(y / side)); i * side < Math.min(this.layer.rows, last[0]); i++) {
      for (let j = Math.max(0, Math.floor(x / side)); j * side < Math.min(this.layer.columns, last[1]); j++) {
        this.#paintTile(context, level, i, j, side, block);
      }
    }
    if (cell >= 14) drawGrid(this, context, colours);
    if (cell >= 46) drawNumbers(this, context, colours);
    drawOutline(this, context, this.cursor, colours.query, colours.key, 2);
    context.restore();
    drawLabels(this, context, colours);
    if (this.hover) drawOutline(this, context, this.hover, colours.ink, colours.ink, 1);
  }

  #paintTile(context, level, i, j, side, block) {
    const key = `${level}/${i}/${j}`;
    const { cell, x, y } = this.view;
    const picture = this.painted.get(key);
    if (picture) {
      const [left, top] = [this.left + (j * side - x) * cell, this.top + (i * side - y) * cell];
      context.drawImage(picture, left, top, picture.width * block * cell, picture.height * block * cell);
      return;
    }
    if (this.pending.has(key)) return;
    this.pending.add(key);
    const layer = this.layer;
    layer
      .paint(level, i, j, (tile, range, scale, maxima) => paintTile(tile, range, scale, this.app.theme(), maxima))
      .then((picture) => {
        this.pending.delete(key);
        if (layer !== this.layer || !picture) return;
        this.painted.set(key, picture);
        if (this.painted.size > 300) this.painted.delete(this.painted.keys().next().value);
        this.draw();
      })
      .catch((error) => {
        this.pending.delete(key);
        this.app.report(error);
      });
  }

  // -- pointer and keyboard --------------------------------------------------------------------------------------------

  #wheel(event) {
    event.preventDefault();
    if (event.shiftKey) this.#place({ ...this.view, x: this.view.x + event.deltaY / this.view.cell });
    else this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
  }

  #down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY, from: [event.offsetX, event.offsetY] });
  }

  #move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.#point(this.cellAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
    const others = [...this.pointers.values()].filter((one) => one !== before);
    if (others.length) {
      const far = (x, y) => Math.hypot(x - others[0].x, y - others[0].y) || 1;
      this.zoom(far(event.offsetX, event.offsetY) / far(before.x, before.y), others[0].x, others[0].y);
    } else {
      this.#place({ ...this.view, x: this.view.x - (event.offsetX - before.x) / this.view.cell, y: this.view.y - (event.offsetY - before.y) / this.view.cell });
    }
    Object.assign(before, { x: event.offsetX, y: event.offsetY });
  }

  #up(event) {
    const before = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (before && Math.hypot(event.offsetX - before.from[0], event.offsetY - before.from[1]) < 4) {
      const at = this.cellAt(event.offsetX, event.offsetY);
      if (at) this.select(...at);
    }
  }

  #point(at, x, y) {
    this.hover = at;
    this.draw();
    if (!at) {
      this.tip.hidden = true;
      return;
    }
    this.layer.value(...at).then((found) => {
      if (this.hover?.[0] !== at[0] || this.hover?.[1] !== at[1]) return;
      const sign = found.exact ? "" : "≈ ";
      this.tip.replaceChildren(
        element("strong", {}, sign + formatWeight(found.value)),
        element("span", {}, ` ${tokenText(this.layer.queryLabels[at[0]], 30)} → ${tokenText(this.layer.keyLabels[at[1]], 30)}`),
      );
      this.tip.dataset.value = found.value;
      this.tip.hidden = false;
      const room = this.width - this.tip.offsetWidth - 4;
      this.tip.style.left = `${Math.max(0, Math.min(x + 14, room))}px`;
      this.tip.style.top = `${y + 18 + this.tip.offsetHeight > this.height ? y - this.tip.offsetHeight - 10 : y + 18}px`;
    }, this.app.report);
  }

  #key(event) {
    const [i, j] = this.cursor ?? [0, -1];
    const [rows, columns] = [this.layer.rows, this.layer.columns];
    const moves = { ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1], Home: [i, 0], End: [i, columns - 1] };
    Object.assign(moves, { PageUp: [0, j], PageDown: [rows - 1, j] });
    const zooms = { "+": 1.4, "=": 1.4, "-": 1 / 1.4 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.select(...moves[event.key]);
    else if (event.key in zooms) this.cursor ? this.zoom(zooms[event.key], ...this.centreOf(...this.cursor)) : this.zoom(zooms[event.key]);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  select(i, j) {
    this.setCursor(Math.max(0, Math.min(i, this.layer.rows - 1)), Math.max(0, Math.min(j, this.layer.columns - 1)));
    this.options.onselect?.(...this.cursor);
  }

  setCursor(i, j) {
    this.cursor = (i ?? null) === null || i >= this.layer.rows || (j ?? 0) >= this.layer.columns ? null : [i, j ?? 0];
    if (this.cursor && this.width && !this.fitted) {
      const [x, y] = this.centreOf(...this.cursor);
      const { cell } = this.view;
      if (x < this.left || x > this.width) this.view.x = Math.max(0, this.cursor[1] - (this.width - this.left) / cell / 2);
      if (y < this.top || y > this.height) this.view.y = Math.max(0, this.cursor[0] - (this.height - this.top) / cell / 2);
    }
    this.draw();
  }
}
