// Elements without markup: every text becomes a text node, so whatever a token contains stays text.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  setProperties(made, properties);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function svgElement(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function setProperties(target, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") target.className = value;
    else if (name === "style") Object.assign(target.style, value);
    else if (name === "data") Object.assign(target.dataset, value);
    else if (name.startsWith("on")) target.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") target.setAttribute(name, value);
    else target[name] = value;
  }
}

export function choose(label, options, value, onchange) {
  // A labelled <select>; options are [value, text].
  const select = element("select", { onchange: () => onchange(select.value) });
  for (const [each, text] of options) select.append(element("option", { value: each, selected: String(each) === String(value) }, text));
  return element("label", { class: "rx-field" }, element("span", {}, label), select);
}

const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };

export function readable(label, longest = 24) {
  // A label with visible white space at its ends and visible control characters, shortened by code points.
  let text = label.replace(/^\s+|\s+$/g, (ends) => [...ends].map((c) => SIGNS[c] ?? c).join("")) || "∅";
  text = text.replace(/[\n\t\r]/g, (c) => SIGNS[c]).replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "·");
  const points = [...text];
  return points.length <= longest ? text : points.slice(0, longest - 1).join("") + "…";
}

export function linesText(text, longest = 300) {
  // An answer of several lines or columns as one line, without long lines that explain the first.
  const [first, ...others] = text.trim().replace(/\t/g, " ").split(/\s*\n\s*/);
  return readable([first, ...others.filter((line) => line.length <= 60)].join(" · "), longest);
}

export function patternText(pattern) {
  // A pattern without the sizes of its tensors.
  return pattern.replace(/\(<[\d×]+>\)/g, "");
}

export function signed(value, digits) {
  // A fixed number of digits, with a minus sign; never −0.
  return value.toFixed(digits).replace("-", "−").replace(/^−(0\.?0*)$/, "$1");
}

export function tokenText(label, longest = 40) {
  // A token among others: the space that many tokenizers begin a word with is left out, as tokens stand apart anyway.
  return readable(label.replace(/^[ \u2581\u0120](?=\S)/, ""), longest);
}

export function formatWeight(value) {
  // As many digits as a float32 has, without needless zeros.
  if (!Number.isFinite(value)) return "–";
  const short = Number(value.toPrecision(7));
  return Math.abs(short) < 1e-4 && short !== 0 ? short.toExponential() : String(short);
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}
