// Keys that are patches: of an image, or of the frames of a video, which stand side by side. Patches with little weight are darkened; grey images
// are also tinted where there is much, as on their black nothing can be darkened.

import { element, formatWeight, tokenText } from "./dom.js";
import { cssColour } from "./colour.js";
import { tokenLine } from "./text_view.js";

const SIDE = 512; // pixels of the longer side of an image
const FRAME = 168; // of a frame
const [GAP, CAPTION] = [10, 18];
const DARKEST = 0.75; // of patches without weight: what they show can still be seen
const TINT = "rgb(255 140 26)";
const MOST_QUERIES = 200; // named above the image

export class PatchPicture {
  // A canvas with the weights of all patches. `pick(patch)`: the number of a patch that was clicked.
  constructor(app, label, pick) {
    Object.assign(this, { app, pick });
    this.canvas = element("canvas", { class: "rx-grid", tabIndex: 0, role: "application", "aria-label": label });
    this.canvas.addEventListener("click", (event) => {
      const scale = this.canvas.width / this.canvas.clientWidth;
      const patch = this.patchAt(event.offsetX * scale, event.offsetY * scale);
      if (patch !== null) pick(patch);
    });
  }

  #room() {
    // The longer side: as much as the stage shows at once, where it does not grow with what is in it.
    const { root, stage } = this.app;
    return root.clientWidth > 820 ? Math.min(SIDE, Math.max(200, stage.clientHeight - this.canvas.offsetTop - 16)) : SIDE;
  }

  #measure({ rows, columns, frames = 1 }, picture) {
    // Cells have the shape of patches; frames are wrapped like words.
    const shape = picture ? (picture.height / rows) * ((frames * columns) / picture.width) : 1;
    const side = frames > 1 ? FRAME : this.#room();
    const wide = Math.max(1, Math.floor(Math.min(side / columns, side / (rows * shape))));
    const tall = Math.max(1, Math.round(wide * shape));
    const room = (this.canvas.parentNode?.clientWidth || 900) - 32;
    const perLine = frames > 1 ? Math.max(1, Math.min(frames, Math.floor((room + GAP) / (columns * wide + GAP)))) : 1;
    this.grid = { rows, columns, frames, wide, tall, perLine, top: frames > 1 ? CAPTION : 0 };
  }

  corner(frame) {
    const { rows, columns, wide, tall, perLine, top } = this.grid;
    return [(frame % perLine) * (columns * wide + GAP), Math.floor(frame / perLine) * (rows * tall + top + GAP) + top];
  }

  box(patch) {
    const { rows, columns, wide, tall } = this.grid;
    const [x, y] = this.corner(Math.floor(patch / (rows * columns)));
    const inside = patch % (rows * columns);
    return [x + (inside % columns) * wide, y + Math.floor(inside / columns) * tall, wide, tall];
  }

  patchAt(x, y) {
    const { rows, columns, frames, wide, tall } = this.grid;
    for (let frame = 0; frame < frames; frame++) {
      const [left, top] = this.corner(frame);
      const [c, r] = [Math.floor((x - left) / wide), Math.floor((y - top) / tall)];
      if (c >= 0 && c < columns && r >= 0 && r < rows) return frame * rows * columns + r * columns + c;
    }
    return null;
  }

  draw(layout, patches, picture, chosen = -1) {
    // `chosen`: the patch that is the query; negative if it is none.
    const { app, canvas } = this;
    this.#measure(layout, picture);
    const { rows, columns, frames, wide, tall, perLine, top } = this.grid;
    const lines = Math.ceil(frames / perLine);
    canvas.width = perLine * (columns * wide + GAP) - GAP;
    canvas.height = lines * (rows * tall + top + GAP) - GAP;
    canvas.classList.toggle("rx-frames", frames > 1);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    const finite = patches.map((value) => (Number.isFinite(value) ? value : 0));
    const range = { top: finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0), signed: finite.some((value) => value < 0) };
    const plain = !picture || range.signed;
    for (let frame = 0; frame < frames; frame++) {
      const [x, y] = this.corner(frame);
      if (!plain) context.drawImage(picture, (frame * picture.width) / frames, 0, picture.width / frames, picture.height, x, y, columns * wide, rows * tall);
      if (frames > 1) {
        context.fillStyle = app.colours().soft;
        context.font = "12px system-ui, sans-serif";
        context.fillText(`step ${frame}`, x, y - 5);
      }
    }
    const fill = (n, colour, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = colour;
      context.fillRect(...this.box(n));
    };
    for (let n = 0; n < finite.length; n++) {
      const share = range.top ? Math.abs(finite[n]) / range.top : 0;
      if (plain) fill(n, cssColour(finite[n], range, app.state.scale === "log" ? "log" : "linear", app.theme()), 1);
      else fill(n, "#000", DARKEST * (1 - share));
      if (!plain && app.capture().grey) fill(n, TINT, 0.45 * share);
    }
    context.globalAlpha = 1;
    if (chosen >= 0) {
      const [x, y] = this.box(chosen);
      context.strokeStyle = app.colours().query;
      context.lineWidth = Math.max(2, wide / 10);
      context.strokeRect(x + 1, y + 1, wide - 2, tall - 2);
    }
    return range;
  }
}

export function loadImage(url) {
  const image = new Image();
  image.src = url;
  return image.decode().then(() => image);
}

export const imageView = {
  id: "image",
  title: "Image",
  hint: "Where one query looks: patches with little weight are dark. Click a patch, choose a query, or move with the arrow keys.",
  uses: ["scale"],
  available: (map) => map.layout.kind === "grid",
  mount(stage, app) {
    stage.classList.add("rx-scroll");
    const name = element("p", { class: "rx-summary", "aria-live": "polite" });
    const grid = () => app.reader().map.layout;
    const square = () => app.reader().rows === app.reader().columns;
    const picture = new PatchPicture(app, "Patches; arrow keys move the query", (patch) => {
      const key = grid().prefix_tokens + patch;
      app.set(square() ? { query: key, key, direction: "out" } : { key });
    });
    picture.canvas.addEventListener("keydown", (event) => {
      const line = square() ? grid().columns : 1;
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: line, ArrowUp: -line }[event.key];
      if (!by) return;
      event.preventDefault();
      app.set({ query: Math.max(0, Math.min(app.reader().rows - 1, (app.state.query ?? 0) + by)), direction: "out" });
    });
    let queries = null;
    function build() {
      const reader = app.reader();
      queries = square() || reader.rows > MOST_QUERIES ? null : tokenLine(reader.queryLabels, "queries", (n) => app.set({ query: n, direction: "out" }), "Queries");
      stage.replaceChildren(...(queries ? [queries] : []), name, picture.canvas);
    }
    async function draw() {
      const reader = app.reader();
      const { prefix_tokens: before } = grid();
      const query = app.state.query ?? 0;
      const turn = (draw.turn = (draw.turn ?? 0) + 1);
      const { values } = await reader.row(app.state.head, query);
      const image = app.capture().image ? await loadImage(app.capture().image) : null;
      if (turn !== draw.turn) return;
      queries?.choose(query);
      name.textContent ||= "…"; // so that the picture knows what room is left
      const range = picture.draw(grid(), values.subarray(before), image, square() ? query - before : -1);
      const others = before > 1 ? `the ${before} tokens that are not patches` : `${tokenText(reader.keyLabels[0] ?? "", 20)}, which is not a patch`;
      const prefix = before ? `; ${formatWeight(Number(values.subarray(0, before).reduce((a, b) => a + b, 0).toFixed(3)))} on ${others}` : "";
      name.textContent = `Query ${tokenText(reader.queryLabels[query], 40)}: largest weight ${range.top.toFixed(4)}${prefix}`;
    }
    const redraw = () => draw().catch(app.report);
    build();
    redraw();
    const observer = new ResizeObserver(redraw);
    observer.observe(stage);
    return {
      picture,
      update(changed) {
        if (changed.has("capture") || changed.has("map")) build();
        redraw();
      },
      destroy: () => observer.disconnect(),
    };
  },
};
