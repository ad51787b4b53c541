// The lineage page: mechanisms by year and family; one of them in detail; sliders to try ideas with.

import { element } from "./dom.js";
import { costChart, costLegend, operations } from "./lineage_cost.js";
import { decodePicture, paintMatrix } from "./matrix_picture.js";
import { tryIt } from "./tryit.js";

class Lineage {
  constructor(root, data) {
    Object.assign(this, { root, data, operation: "forward" });
    this.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    this.narrow = matchMedia("(max-width: 940px)");
    this.buttons = new Map();
    root.classList.add("lx");
    root.dataset.theme = this.theme;
    root.lineage = this; // for tests and for the console
    this.detail = element("aside", { class: "lx-detail", "aria-label": "The chosen mechanism" });
    this.timeline = element("div", { class: "lx-timeline", role: "group", "aria-label": "Mechanisms by family and year", onkeydown: (event) => this.move(event) });
    this.cards = tryIt(this);
    root.replaceChildren(this.head(), element("div", { class: "lx-body" }, this.timeline, this.detail), this.sliders(), this.foot());
    this.fill();
    this.choose(this.fromAddress() ?? "softmax");
    addEventListener("hashchange", () => this.choose(this.fromAddress() ?? this.chosen, true));
    this.narrow.addEventListener("change", () => this.place());
  }

  // -- parts ---------------------------------------------------------------------------------------------------------

  head() {
    const { mechanisms, link } = this.data;
    const toggle = element("button", { type: "button", class: "lx-button", onclick: () => this.setTheme(this.theme === "dark" ? "light" : "dark") }, "Light or dark");
    const back = link ? element("a", { class: "lx-back", href: link.replace(/mechanisms\/NAME\/?$/, "") }, "Documentation") : null;
    const title = element("div", {}, element("h1", {}, "The lineage of attention"), element("p", { class: "lx-quiet" }, `${mechanisms.length} mechanisms, ${mechanisms[0].year} to ${mechanisms.at(-1).year}. Each is a weighted average of values; they differ in who may attend to whom, in what weighs, and in what it costs.`));
    return element("header", { class: "lx-head" }, title, element("div", { class: "lx-actions" }, back, toggle));
  }

  fill() {
    // A section per family: its mechanisms in the columns of their years. On narrow screens the columns flow.
    const { families, mechanisms } = this.data;
    const years = [...new Set(mechanisms.map(({ year }) => year))].sort((a, b) => a - b);
    const longest = (year) => Math.max(...mechanisms.filter((one) => one.year === year).flatMap(({ name }) => name.split("_").map((part) => part.length)));
    this.timeline.style.setProperty("--columns", years.map((year) => `minmax(0, ${longest(year) + 3}fr)`).join(" ")); // a word is never broken
    this.timeline.append(element("div", { class: "lx-years", "aria-hidden": "true" }, years.map((year) => element("span", {}, String(year)))));
    families.forEach((family, n) => {
      const row = element("div", { class: "lx-row" });
      for (const one of mechanisms.filter((each) => each.family === n)) row.append(this.button(one, years.indexOf(one.year)));
      const columns = years.map((year, at) => element("div", { class: "lx-column", data: { year } }, [...row.children].filter((button) => Number(button.dataset.column) === at)));
      row.replaceChildren(...columns);
      this.timeline.append(element("section", { class: "lx-family" }, element("h2", { title: family.text }, family.title, element("small", {}, family.text)), row));
    });
  }

  button(one, column) {
    const thumb = element("canvas", { class: "lx-thumb", "aria-hidden": "true" });
    const name = element("span", {}, one.name.split("_").flatMap((part, n) => (n ? ["_", element("wbr"), part] : [part])));
    const label = `${one.name} ${one.year}`;
    const made = element("button", { type: "button", class: "lx-mechanism", "aria-label": label, title: label, data: { column, name: one.name }, onclick: () => this.choose(one.name, true) }, thumb, name, " ", element("small", { class: "lx-year" }, String(one.year)));
    this.buttons.set(one.name, made);
    made.tabIndex = -1;
    return made;
  }

  sliders() {
    return element("section", { class: "lx-try", "aria-label": "Try it" }, element("h2", {}, "Try it"), element("div", { class: "lx-cards" }, this.cards.map((card) => card.root)));
  }

  foot() {
    const { machine, date, sizes } = this.data.costs;
    return element("footer", { class: "lx-foot lx-quiet" }, `Costs: ${sizes}; ${machine}${date ? `; ${date}` : ""}. Random inputs, parameters as initialised. regard compare --html lineage.html measures them on your machine. Pictures: ${this.data.mechanisms.find((one) => one.picture)?.picture.size} tokens, the second half repeats the first.`);
  }

  // -- choosing ------------------------------------------------------------------------------------------------------

  fromAddress() {
    const name = decodeURIComponent(location.hash.slice(1));
    return this.buttons.has(name) ? name : null;
  }

  choose(name, asked = false) {
    this.chosen = name;
    for (const [each, button] of this.buttons) {
      button.setAttribute("aria-pressed", String(each === name));
      button.tabIndex = each === name ? 0 : -1;
    }
    this.show();
    this.place();
    if (!asked) return;
    try {
      history.replaceState(null, "", `#${name}`);
    } catch {
      // an embedded page may have no address of its own
    }
    const behaviour = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
    if (this.narrow.matches || this.detail.getBoundingClientRect().bottom < 0) this.detail.scrollIntoView({ block: "nearest", behavior: behaviour });
  }

  place() {
    // Beside the timeline; on narrow screens below the family.
    const home = this.narrow.matches ? this.buttons.get(this.chosen).closest(".lx-family") : this.root.querySelector(".lx-body");
    home.append(this.detail);
    this.paint();
  }

  move(event) {
    // One stop for Tab; arrows go from mechanism to mechanism, in the order of the page.
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const names = [...this.buttons.keys()];
    if (!event.target.dataset?.name || (!step && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const ordered = [...this.timeline.querySelectorAll(".lx-mechanism")].map((button) => button.dataset.name);
    const at = event.key === "Home" ? 0 : event.key === "End" ? names.length - 1 : ordered.indexOf(event.target.dataset.name) + step;
    const next = ordered[Math.max(0, Math.min(at, ordered.length - 1))];
    this.choose(next, true);
    this.buttons.get(next).focus();
  }

  // -- one mechanism -------------------------------------------------------------------------------------------------

  show() {
    const one = this.data.mechanisms.find(({ name }) => name === this.chosen);
    const paper = one.address ? element("a", { href: one.address, rel: "noreferrer" }, one.title) : `${one.title}, ${one.paper}`;
    const facts = [["time", one.time], ["memory", one.memory], ["causal", one.causal], ["streams with", one.state ?? "–"]];
    this.picture = element("canvas", { class: "lx-matrix", role: "img", "aria-label": `weights of ${one.name} on ${one.picture?.size} tokens` });
    const more = this.data.link ? element("p", {}, element("a", { href: this.data.link.replace("NAME", one.name) }, "Everything about it")) : null;
    this.detail.replaceChildren(
      element("h2", {}, one.name, element("small", {}, `${one.class}, ${one.year}`)),
      element("p", {}, plain(one.summary)),
      element("div", { class: "lx-formula" }, one.mathml.length ? one.mathml.map(mathOf) : one.formula),
      element("div", { class: "lx-seen" }, one.picture ? element("figure", {}, this.picture, element("figcaption", {}, pictureCaption(one.picture))) : null, element("dl", { class: "lx-facts" }, facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]))),
      ...this.cost(one),
      ...[["Use it", one.use], ["Avoid it", one.avoid]].filter(([, text]) => text).map(([name, text]) => element("p", { class: "lx-advice" }, element("b", {}, `${name}: `), plain(text))),
      element("p", { class: "lx-quiet" }, paper, `, ${one.year}`),
      ...(more ? [more] : []),
    );
  }

  cost(one) {
    const known = operations(this.data.costs, one.name);
    if (!known.length) return [element("p", { class: "lx-quiet" }, "Its cost was not measured.")];
    const operation = known.some(([each]) => each === this.operation) ? this.operation : known[0][0];
    const { svg, text } = costChart(this.data.costs, one.name, operation);
    const select = element("select", { "aria-label": "what is measured", onchange: () => ((this.operation = select.value), this.show(), this.paint(), this.detail.querySelector("select").focus()) });
    for (const [each, label] of known) select.append(element("option", { value: each, selected: each === operation }, label));
    return [element("div", { class: "lx-costs" }, element("label", { class: "lx-pick" }, element("span", {}, "Cost"), select), svg, costLegend(), element("p", { class: "lx-quiet" }, text))];
  }

  // -- colours -------------------------------------------------------------------------------------------------------

  setTheme(theme) {
    this.theme = this.root.dataset.theme = theme;
    this.paint(true);
    for (const card of this.cards) card.draw();
  }

  paint(again = false) {
    const chosen = this.data.mechanisms.find(({ name }) => name === this.chosen);
    if (chosen.picture) this.paintPicture(this.picture, chosen.picture);
    if (this.painted && !again) return;
    this.painted = true;
    for (const one of this.data.mechanisms) if (one.picture) this.paintPicture(this.buttons.get(one.name).querySelector("canvas"), one.picture);
  }

  paintPicture(canvas, picture) {
    paintMatrix(canvas, decodePicture(picture), { size: picture.size, top: 1, signed: picture.signed, theme: this.theme });
  }
}

function pictureCaption({ pattern, signed, top }) {
  return `${pattern}; rows are queries, columns keys; largest ${signed ? "magnitude" : "weight"} ${top}`;
}

function plain(text) {
  // A docstring's words without its marks.
  return text.replace(/`([^`]*)`/g, "$1").replace(/\$([^$]*)\$/g, "$1");
}

function mathOf(text) {
  // MathML that was made with the page.
  const parsed = new DOMParser().parseFromString(text, "application/xml").documentElement;
  return parsed.localName === "math" ? document.importNode(parsed, true) : "";
}

new Lineage(document.getElementById("lineage"), JSON.parse(document.getElementById("data").textContent));
