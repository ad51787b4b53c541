// What the page does not say by itself.

import { element } from "./dom.js";

const POINTS = [
  ["Weights are not importance.", "A weight says how much of a value was read, not what the answer depended on. Other weights can give the same output (Jain & Wallace 2019), and a large weight on a small value moves nothing: see the norms under Why."],
  ["Test it.", "Gradients shows what the output depended on, to first order. Where the page can run the model, ablate a head, by zeros or by uniform weights, and see whether the loss and the output change. A picture that survives that test is worth more than one that does not."],
  ["Sinks are normal.", "Many heads rest on the first token when they have nothing to do. That weight says little about the first token."],
  ["Layers mix.", "Beyond the first layer a position holds more than its own token; rollout follows the weights through the layers, as an approximation."],
  ["What is exact.", "Pictures have 256 shades, pooled by the largest weight when there are more cells than pixels. Numbers in the panel and under the pointer are the model's own, in float32; ≈ marks those that were read off a picture."],
];

const KEYS = [
  ["Tab", "from part to part"],
  ["← →", "between views, between tokens, across a matrix row"],
  ["↑ ↓", "between matrix rows and list entries"],
  ["+  −  0", "zoom a matrix in, out, show all of it"],
  ["Enter", "choose"],
];

export function helpDialog() {
  const close = element("button", { type: "button", class: "rx-button", autofocus: true, onclick: () => dialog.close() }, "Close");
  const points = POINTS.map(([title, text]) => element("p", {}, element("b", {}, `${title} `), text));
  const keys = KEYS.flatMap(([name, text]) => [element("dt", {}, element("kbd", {}, name)), element("dd", {}, text)]);
  const dialog = element("dialog", { class: "rx-help", "aria-label": "Attention is not an explanation" }, element("h2", {}, "Attention is not an explanation"), points, element("h2", {}, "Keyboard"), element("dl", { class: "rx-facts" }, keys), close);
  return dialog;
}
