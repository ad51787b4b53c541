// A matrix on a canvas: pan, zoom, labels, a cursor for pointer and keyboard. It draws layers (layers.js) and knows nothing of attention.

import { element, formatWeight, tokenText } from "./dom.js";
import { isDark, paintTile } from "./colour.js";

const FONT = "12px system-ui, sans-serif";
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
    this.#gutters();
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
    this.#gutters();
    if (this.fitted) this.open();
    else this.draw();
  }

  open() {
    // All of it; of a map that is computed while it is read, its beginning, which is there at once.
    this.fit();
    if (this.layer.reader.map.deferred && this.view.cell < 1) this.#place({ cell: 1, x: 0, y: 0 }, false);
  }

  #gutters() {
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const most = this.width < 500 ? 76 : 128;
    const wide = (labels) => labels.slice(0, 400).reduce((found, label) => Math.max(found, context.measureText(tokenText(label, 18)).width), 0);
    const room = (labels) => Math.min(most, Math.max(46, Math.ceil(wide(labels)) + 14));
    this.margin = [room(this.layer.queryLabels), room(this.layer.keyLabels)];
    [this.left, this.top] = this.margin;
  }

  #shorten(context, label, room) {
    // The label, cut off where the gutter ends.
    let text = tokenText(label, 18);
    const points = [...text];
    while (points.length > 1 && context.measureText(text).width > room) text = `${points.slice(0, -1).join("")}…`, points.pop();
    return text;
  }

  fit() {
    if (!this.width) return;
    [this.left, this.top] = this.margin;
    const [across, down] = [this.width - this.left - 4, this.height - this.top - 4];
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
    if (cell >= 14) this.#grid(context, colours);
    if (cell >= 46) this.#numbers(context, colours);
    this.#outline(context, this.cursor, colours.query, colours.key, 2);
    context.restore();
    this.#labels(context, colours);
    if (this.hover) this.#outline(context, this.hover, colours.ink, colours.ink, 1);
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

  #visible() {
    const { cell, x, y } = this.view;
    const upto = (from, room, all) => Math.min(all - 1, Math.ceil(from + room / cell));
    return [Math.max(0, Math.floor(y)), upto(y, this.height - this.top, this.layer.rows), Math.max(0, Math.floor(x)), upto(x, this.width - this.left, this.layer.columns)];
  }

  #grid(context, colours) {
    const [top, bottom, left, right] = this.#visible();
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.beginPath();
    for (let i = top; i <= bottom + 1; i++) {
      const at = Math.round(this.centreOf(i, 0)[1] - this.view.cell / 2) + 0.5;
      context.moveTo(this.#edge()[0], at);
      context.lineTo(this.left + (this.layer.columns - this.view.x) * this.view.cell, at);
    }
    for (let j = left; j <= right + 1; j++) {
      const at = Math.round(this.centreOf(0, j)[0] - this.view.cell / 2) + 0.5;
      context.moveTo(at, this.#edge()[1]);
      context.lineTo(at, this.top + (this.layer.rows - this.view.y) * this.view.cell);
    }
    context.stroke();
  }

  #numbers(context, colours) {
    const [top, bottom, left, right] = this.#visible();
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = top; i <= bottom; i++) {
      const row = this.layer.knownRow?.(i, () => this.draw());
      if (!row) continue;
      for (let j = left; j <= right; j++) {
        const [px, py] = this.centreOf(i, j);
        const dark = isDark(row.values[j], row.range, row.scale, this.app.theme());
        context.fillStyle = dark ? "#ffffff" : "#1b1f24";
        if (Math.abs(row.values[j]) >= 0.005) context.fillText(row.values[j].toFixed(2), px, py);
      }
    }
    context.textAlign = "start";
  }

  #outline(context, at, rowColour, columnColour, width) {
    if (!at) return;
    const { cell } = this.view;
    const [px, py] = this.centreOf(...at);
    const size = Math.max(cell, 3);
    context.lineWidth = width;
    if (width > 1) {
      context.strokeStyle = rowColour;
      context.strokeRect(this.centreOf(0, 0)[0] - cell / 2 - 1, py - size / 2, this.layer.columns * cell + 2, size);
      context.strokeStyle = columnColour;
      context.strokeRect(px - size / 2, this.centreOf(0, 0)[1] - cell / 2 - 1, size, this.layer.rows * cell + 2);
    } else {
      context.strokeStyle = rowColour;
      context.strokeRect(px - size / 2, py - size / 2, size, size);
    }
  }

  #labels(context, colours) {
    context.font = FONT;
    context.textBaseline = "middle";
    const [top, bottom, left, right] = this.#visible();
    const { cell } = this.view;
    const step = cell >= 9 ? Math.max(1, Math.ceil(13 / cell)) : [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * cell >= 34) ?? 20000;
    const marked = this.hover ?? this.cursor;
    context.save();
    context.beginPath();
    context.rect(0, this.top, this.#edge()[0], this.height);
    context.clip();
    context.textAlign = "right";
    for (let i = Math.ceil(top / step) * step; i <= bottom; i += step) this.#queryLabel(context, colours, i, marked);
    if (marked) this.#queryLabel(context, colours, marked[0], marked);
    context.restore();
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.width, this.#edge()[1]);
    context.clip();
    for (let j = Math.ceil(left / step) * step; j <= right; j += step) this.#keyLabel(context, colours, j, marked);
    if (marked) this.#keyLabel(context, colours, marked[1], marked);
    context.restore();
    context.textAlign = "start";
  }

  #edge() {
    // The upper left corner of the cells that are shown.
    return [this.left - Math.min(0, this.view.x) * this.view.cell, this.top - Math.min(0, this.view.y) * this.view.cell];
  }

  #queryLabel(context, colours, i, marked) {
    const at = this.centreOf(i, 0)[1];
    const chosen = marked?.[0] === i;
    if (chosen) this.#plate(context, colours.stage, this.#edge()[0] - this.margin[0], at - 8, this.margin[0], 16);
    context.fillStyle = chosen ? colours.query : colours.soft;
    context.fillText(this.#shorten(context, this.#name(this.layer.queryLabels, i, chosen), this.margin[0] - 10), this.#edge()[0] - 7, at);
  }

  #keyLabel(context, colours, j, marked) {
    const at = this.centreOf(0, j)[0];
    const chosen = marked?.[1] === j;
    context.save();
    context.translate(at, this.#edge()[1] - 6);
    context.rotate(-Math.PI / 2);
    if (chosen) this.#plate(context, colours.stage, 0, -8, this.margin[1], 16);
    context.fillStyle = chosen ? colours.key : colours.soft;
    context.fillText(this.#shorten(context, this.#name(this.layer.keyLabels, j, chosen), this.margin[1] - 10), 0, 0);
    context.restore();
  }

  #name(labels, n, chosen) {
    // The token; where most tokens have no room, its position.
    return this.view.cell >= 9 || chosen ? labels[n] : String(n);
  }

  #plate(context, colour, ...box) {
    context.fillStyle = colour;
    context.fillRect(...box);
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
    this.cursor = i === null || i === undefined ? null : [i, j ?? 0];
    if (this.cursor && this.width && !this.fitted) {
      const [x, y] = this.centreOf(...this.cursor);
      const { cell } = this.view;
      if (x < this.left || x > this.width) this.view.x = Math.max(0, this.cursor[1] - (this.width - this.left) / cell / 2);
      if (y < this.top || y > this.height) this.view.y = Math.max(0, this.cursor[0] - (this.height - this.top) / cell / 2);
    }
    this.draw();
  }
}
