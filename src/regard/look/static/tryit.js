// Four ideas with sliders, computed here: temperature, windows, random features, hashes.

import { element, percent, svgElement } from "./dom.js";
import { paintMatrix } from "./matrix_picture.js";
import { attention, difference, effectiveKeys, featureAttention, hashRounds, randomMatrix, smooth, windowed } from "./tryit_math.js";

const KEYS = [0.04, 0.13, 0.22, 0.36, 0.45, 0.58, 0.69, 0.83, 0.95];
const VALUES = [0.22, 0.5, 0.78, 0.84, 0.55, 0.2, 0.16, 0.47, 0.8];

function slider(label, { min, max, value, step = 1, show = String }, changed) {
  // `show` says what the position means. The element's `read()` is its value.
  const output = element("output", {});
  const input = element("input", { type: "range", min, max, step, "aria-label": label });
  input.value = value;
  const update = () => {
    output.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => (update(), changed()));
  update();
  const made = element("label", { class: "lx-slider" }, element("span", {}, label), input, output);
  made.read = () => Number(input.value);
  return made;
}

class Card {
  constructor(page, { title, text, link }) {
    this.page = page;
    this.result = element("p", { class: "lx-result", role: "status" });
    this.stage = element("div", { class: "lx-try-stage" });
    this.controls = element("div", { class: "lx-sliders" });
    const names = link.flatMap((name, n) => [n ? " · " : "", element("a", { href: `#${name}` }, name)]);
    const heading = element("h3", {}, title);
    this.root = element("section", { class: "lx-card" }, heading, element("p", { class: "lx-quiet" }, text, " ", names), this.controls, this.stage, this.result);
  }

  matrices(...captions) {
    // Canvases side by side.
    this.canvases = captions.map((caption) => {
      const canvas = element("canvas", { class: "lx-matrix", role: "img", "aria-label": caption });
      this.stage.append(element("figure", {}, canvas, element("figcaption", {}, caption)));
      return canvas;
    });
  }

  paint(n, matrix, top) {
    paintMatrix(this.canvases[n], matrix.flat(), { size: matrix.length, top, signed: false, theme: this.page.theme });
  }
}

// -- temperature ---------------------------------------------------------------------------------------------------------

class Temperature extends Card {
  constructor(page) {
    super(page, {
      title: "Temperature: from the mean to the nearest neighbour",
      text: "softmax(−(q − k)² / τ) v. Dots are keys with their values, as large as their weight for the query; the line is the output for every query.",
      link: ["softmax", "cosine", "hard"],
    });
    this.temperature = slider("temperature τ", { min: -4, max: 1, step: 0.05, value: -2.3, show: (x) => (10 ** x).toPrecision(2) }, () => this.draw());
    this.query = slider("query q", { min: 0, max: 1, step: 0.01, value: 0.4, show: (x) => x.toFixed(2) }, () => this.draw());
    this.controls.append(this.temperature, this.query);
    this.svg = svgElement("svg", { viewBox: "0 0 400 190", class: "lx-smooth", role: "img", "aria-label": "output against query" });
    this.stage.append(this.svg);
    this.draw();
  }

  draw() {
    const [tau, q] = [10 ** this.temperature.read(), this.query.read()];
    const x = (key) => 12 + 376 * key;
    const y = (value) => 180 - 170 * value;
    const { weights, output } = smooth(q, KEYS, VALUES, tau);
    const curve = Array.from({ length: 301 }, (_, n) => `${n ? "L" : "M"}${x(n / 300).toFixed(1)} ${y(smooth(n / 300, KEYS, VALUES, tau).output).toFixed(1)}`).join("");
    const dots = KEYS.map((key, n) => svgElement("circle", { cx: x(key), cy: y(VALUES[n]), r: 3 + 13 * Math.sqrt(weights[n]), class: "lx-key" }));
    this.svg.replaceChildren(
      svgElement("line", { x1: x(q), x2: x(q), y1: 4, y2: 186, class: "lx-at" }),
      svgElement("path", { d: curve, class: "lx-curve" }),
      ...dots,
      svgElement("circle", { cx: x(q), cy: y(output), r: 5, class: "lx-out" }),
    );
    const used = effectiveKeys(weights);
    const name = used > KEYS.length - 0.1 ? "the mean of all values" : used < 1.05 ? "the nearest neighbour" : `an average over about ${used.toFixed(1)} keys`;
    this.result.textContent = `Output ${output.toFixed(3)}: ${name}.`;
    this.state = { tau, q, keys: KEYS, values: VALUES, weights, output };
  }
}

// -- windows -------------------------------------------------------------------------------------------------------------

class Window extends Card {
  constructor(page) {
    super(page, {
      title: "Window width: what is left out",
      text: "softmax(q·k / √K) v over the last w tokens, and the first s. Tokens repeat after half the text, which only a wide window can see.",
      link: ["local", "streaming", "longformer"],
    });
    const half = randomMatrix(16, 8, 3).map((row) => row.map((x) => 1.5 * x));
    this.tokens = [...half, ...half];
    this.full = attention(this.tokens, this.tokens, 8 ** -0.5, windowed(32, 0));
    this.width = slider("width w", { min: 1, max: 32, value: 8 }, () => this.draw());
    this.first = slider("first tokens s", { min: 0, max: 8, value: 0 }, () => this.draw());
    this.controls.append(this.width, this.first);
    this.matrices("exact", "within the window");
    this.draw();
  }

  draw() {
    const allowed = windowed(this.width.read(), this.first.read());
    const weights = attention(this.tokens, this.tokens, 8 ** -0.5, allowed);
    this.paint(0, this.full, 1);
    this.paint(1, weights, 1);
    let [pairs, kept] = [0, 0];
    this.full.forEach((row, i) => row.forEach((w, j) => ((pairs += allowed(i, j)), (kept += allowed(i, j) ? w : 0))));
    this.result.textContent = `${pairs} of 528 pairs are compared (${percent(pairs / 528)}); they hold ${percent(kept / 32)} of the exact weight.`;
    this.state = { tokens: this.tokens, weights, pairs, kept: kept / 32 };
  }
}

// -- random features -----------------------------------------------------------------------------------------------------

class Features extends Card {
  constructor(page) {
    super(page, {
      title: "Random features: softmax as a dot product",
      text: "exp(q·k) is the mean of φ(q)·φ(k) over random directions ω, with φ(x) = exp(ω·x − |x|²/2). More features, smaller error, more work.",
      link: ["performer", "rfa", "linear"],
    });
    this.tokens = randomMatrix(24, 4, 11).map((row) => row.map((x) => 0.5 * x));
    this.exact = attention(this.tokens, this.tokens, 1);
    this.seed = 0;
    this.features = slider("features F", { min: 0, max: 10, value: 4, show: (n) => String(2 ** n) }, () => this.draw());
    const again = element("button", { type: "button", class: "lx-button", onclick: () => ((this.seed += 1), this.draw()) }, "Draw again");
    this.controls.append(this.features, again);
    this.matrices("exact", "with F features");
    this.draw();
  }

  draw() {
    const count = 2 ** this.features.read();
    const directions = randomMatrix(count, 4, 100 + this.seed);
    const weights = featureAttention(this.tokens, this.tokens, directions);
    const top = Math.max(...this.exact.flat());
    this.paint(0, this.exact, top);
    this.paint(1, weights, top);
    const error = difference(weights, this.exact);
    this.result.textContent = `${count} ${count === 1 ? "feature" : "features"}: relative error ${error.toPrecision(2)}. It falls about as 1/√F: four times the features, half the error.`;
    this.state = { tokens: this.tokens, directions, weights, error };
  }
}

// -- hashes --------------------------------------------------------------------------------------------------------------

class Hashes extends Card {
  constructor(page) {
    super(page, {
      title: "Hash rounds: finding neighbours without comparing all",
      text: "Tokens are compared only if they share a bucket, argmax[xR; −xR], in some round. Every round finds more neighbours, and costs the same again.",
      link: ["lsh", "routing"],
    });
    const centres = randomMatrix(6, 6, 21);
    const noise = randomMatrix(32, 6, 22);
    this.tokens = noise.map((row, n) => {
      const x = row.map((z, d) => centres[(n * 7) % 6][d] + 0.35 * z);
      const size = Math.hypot(...x);
      return x.map((value) => value / size);
    });
    this.exact = attention(this.tokens, this.tokens, 8);
    this.rounds = slider("rounds R", { min: 1, max: 8, value: 2 }, () => this.draw());
    this.buckets = slider("buckets", { min: 2, max: 16, step: 2, value: 8 }, () => this.draw());
    this.controls.append(this.rounds, this.buckets);
    this.matrices("exact", "found by hashing");
    this.draw();
  }

  draw() {
    const hashes = hashRounds(this.tokens, this.buckets.read(), this.rounds.read(), 7);
    const met = (i, j) => hashes.some((round) => round[i] === round[j]);
    let [pairs, found] = [0, 0];
    const weights = this.exact.map((row, i) => row.map((w, j) => ((pairs += met(i, j)), (found += met(i, j) ? w : 0), met(i, j) ? w : 0)));
    const top = Math.max(...this.exact.flat());
    this.paint(0, this.exact, top);
    this.paint(1, weights, top);
    this.result.textContent = `${percent(pairs / 1024)} of the pairs are compared; they hold ${percent(found / 32)} of the exact weight.`;
    this.state = { tokens: this.tokens, hashes, pairs, found: found / 32 };
  }
}

export function tryIt(page) {
  // All cards; redraw them when the theme changes.
  return [Temperature, Window, Features, Hashes].map((Kind) => new Kind(page));
}
