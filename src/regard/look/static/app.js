// The explorer: state, controls, tabs, and the view that is open. Views read `app.state` and change it with `app.set`.

import { choose, element, readable } from "./dom.js";
import { Reader } from "./format.js";
import { legend } from "./colour.js";
import { helpDialog } from "./help.js";
import { Panel } from "./panel.js";
import { matrixView } from "./matrix_view.js";
import { headsView } from "./heads_view.js";
import { textView } from "./text_view.js";
import { linesView } from "./lines_view.js";
import { alignmentView } from "./alignment_view.js";
import { compareView, patternView } from "./pair_views.js";
import { whyView } from "./why_view.js";
import { gradientsView } from "./gradients_view.js";
import { imageView } from "./image_view.js";
import { graphView, pointsView } from "./points_view.js";
import { WeightsLayer } from "./layers.js";

const VIEWS = [matrixView, headsView, textView, linesView, alignmentView, patternView, compareView, whyView, gradientsView, imageView, pointsView, graphView];
const NUMBER = { test: (value) => /^\d{1,9}$/.test(value) };
const SCALES = [["linear", "linear"], ["unit", "0 to 1"], ["row", "per row"], ["log", "logarithmic"]];
// In the address, so that a link shows the same: names and what they may be.
const SAVED = {
  view: oneOf(VIEWS.map((view) => view.id)),
  map: NUMBER,
  head: NUMBER,
  query: NUMBER,
  key: NUMBER,
  scale: oneOf(SCALES.map(([name]) => name)),
  direction: oneOf(["out", "in"]),
  measure: oneOf(["norm", "times"]),
};

function oneOf(names) {
  return { test: (value) => names.includes(value) };
}

export class Explorer {
  constructor(root, source, embedded = false) {
    Object.assign(this, { root, source, embedded, readers: new Map() });
    this.captures = source.header.captures;
    this.report = (error) => this.tell(error.message ?? String(error), true);
    this.build();
    this.state = this.startState();
    root.explorer = this; // for tests and for the console
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.system.onchange = () => this.state.theme === null && (this.matchTheme(), this.renderControls(), this.opened?.update(new Set(["theme"])));
    this.matchTheme();
    this.renderControls();
    this.openView();
    this.panel.update().catch(this.report);
  }

  // -- state ---------------------------------------------------------------------------------------------------------

  startState() {
    const maps = this.captures[0]?.maps ?? [];
    const crossing = maps.findLastIndex((map) => map.cross);
    const last = maps.findLastIndex((map) => !map.derived);
    const map = Math.max(0, crossing >= 0 ? crossing : last);
    const { kind } = maps[map]?.layout ?? {};
    const view = kind === "grid" ? "image" : kind === "tree" && maps[map].rows === 1 ? "text" : "matrix"; // an image is looked at, one row over a document read
    const state = { capture: this.captures.length - 1, map, head: 0, query: null, key: null, scale: "linear", direction: "out", view, other: {}, theme: null };
    const saved = new URLSearchParams(this.embedded ? "" : location.hash.slice(1));
    for (const [name, value] of saved) {
      if (SAVED[name]?.test(value)) state[name] = SAVED[name] === NUMBER ? Number(value) : value;
    }
    const fits = VIEWS.find((view) => view.id === state.view)?.available ?? (() => true);
    if (!saved.has("map") && !fits(maps[state.map])) state.map = Math.max(0, maps.findLastIndex(fits));
    if (!saved.has("scale") && maps[state.map]?.columns > 400) state.scale = "log"; // most weights of a long text are tiny
    return this.settle({ ...state, capture: 0 });
  }

  settle(state) {
    // Everything within what the capture has.
    const maps = this.captures[state.capture].maps;
    state.map = Math.min(state.map, maps.length - 1);
    const map = maps[state.map];
    state.head = Math.min(state.head, map.heads.length - 1);
    if (state.query !== null && state.query >= map.rows) state.query = null;
    if (state.key !== null && state.key >= map.columns) state.key = null;
    if (!VIEWS.some((view) => view.id === state.view)) state.view = "matrix";
    return state;
  }

  set(changes) {
    const before = this.state;
    this.state = this.settle({ ...before, ...changes });
    const changed = new Set(Object.keys(this.state).filter((name) => this.state[name] !== before[name]));
    if (changes.captures) changed.add("captures");
    if (!changed.size) return;
    if (changed.has("theme")) this.matchTheme();
    this.renderControls();
    if (changed.has("view") || ((changed.has("map") || changed.has("capture")) && !this.fits())) this.openView();
    else this.opened?.update(changed);
    this.panel.update().catch(this.report);
    this.onchange?.(changed);
    this.remember();
  }

  remember() {
    if (this.embedded) return; // the address is the notebook's
    const kept = Object.keys(SAVED).filter((name) => (this.state[name] ?? null) !== null).map((name) => [name, this.state[name]]);
    try {
      history.replaceState(null, "", `#${new URLSearchParams([...kept, ...(this.given?.() ?? [])])}`);
    } catch {
      // an embedded page may have no address of its own
    }
  }

  addCapture({ alternatives = [], ...capture }, keep = 8) {
    // What the model has just done, and its other answers; the oldest are forgotten, as the server does.
    this.captures.push(capture, ...alternatives);
    while (this.inputs().length > keep) this.captures.splice(0, this.inputs()[1]);
    this.set({ captures: true, capture: this.captures.length - 1 - alternatives.length, other: {} });
  }

  inputs() {
    // Numbers of the captures that are no other answers to the input of another one.
    return [...this.captures.keys()].filter((n) => this.captures[n].of === undefined);
  }

  answers() {
    // Numbers of all captures of the chosen input: its answers, best first.
    const { id, of = id } = this.capture();
    return [...this.captures.keys()].filter((n) => this.captures[n].id === of || this.captures[n].of === of);
  }

  capture() {
    return this.captures[this.state.capture];
  }

  captureName(n) {
    // Its text and what was changed; a number, if an earlier one has the same name.
    const { of, output } = this.captures[n];
    if (of !== undefined) return readable(output, 30);
    const name = this.#plainName(n);
    const before = this.inputs().filter((other) => other < n && this.#plainName(other) === name).length;
    return before ? `${name} (${before + 1})` : name;
  }

  #plainName(n) {
    const { title, step, text, label } = this.captures[n];
    const given = text || label ? readable(text || label, 30) : "";
    const parts = [given, title, step === undefined ? "" : `step ${step}`].filter(Boolean);
    return parts.join(" · ") || `capture ${n + 1}`;
  }

  headName(n) {
    const map = this.capture().maps[this.state.map];
    const how = map.ablated?.[map.heads[n]];
    return how ? `${map.heads[n]} (ablated: ${how})` : map.heads[n];
  }

  reader(at = {}) {
    const { capture, map } = { ...this.state, ...at };
    const key = `${this.captures[capture].id}/${map}`;
    if (!this.readers.has(key)) this.readers.set(key, new Reader(this.source, this.captures[capture], map));
    return this.readers.get(key);
  }

  // -- looks ---------------------------------------------------------------------------------------------------------

  theme() {
    return this.root.dataset.theme;
  }

  matchTheme() {
    this.root.dataset.theme = this.state.theme ?? (this.system.matches ? "dark" : "light");
    this.themeButton.setAttribute("aria-label", this.theme() === "dark" ? "Use the light theme" : "Use the dark theme");
    const style = getComputedStyle(this.root);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    this.shown = { stage: read("stage"), ink: read("ink"), soft: read("soft"), line: read("grid"), query: read("query"), key: read("key") };
  }

  colours() {
    return this.shown;
  }

  tell(text, isError = false) {
    this.status.textContent = text;
    this.status.classList.toggle("rx-error", isError);
  }

  // -- parts of the page -----------------------------------------------------------------------------------------------

  build() {
    this.root.classList.add("rx");
    const help = helpDialog();
    this.themeButton = element("button", { type: "button", class: "rx-icon", onclick: () => this.set({ theme: this.theme() === "dark" ? "light" : "dark" }) }, "◐");
    this.tabs = element("div", { class: "rx-tabs", role: "tablist", "aria-label": "Views", onkeydown: (event) => this.walkTabs(event) });
    this.controls = element("div", { class: "rx-controls" });
    this.hint = element("p", { class: "rx-hint" });
    this.stage = element("div", { class: "rx-stage", role: "tabpanel", id: "rx-stage" });
    this.status = element("p", { class: "rx-status", role: "status" });
    this.live = element("div", { class: "rx-live" });
    this.panel = new Panel(this);
    const title = readable(this.source.header.title || "attention", 60);
    const brand = element("h1", {}, element("span", { class: "rx-brand" }, "regard"), element("span", { class: "rx-title" }, title));
    const caveat = element("button", { type: "button", class: "rx-caveat", onclick: () => help.showModal() }, "Attention is not an explanation");
    const lineage = this.source.live ? element("a", { class: "rx-caveat", href: "/lineage" }, "Lineage") : null;
    this.root.append(
      element("header", { class: "rx-head" }, brand, element("div", { class: "rx-actions" }, lineage, caveat, this.themeButton)),
      this.live,
      element("nav", { class: "rx-nav" }, this.tabs),
      this.controls,
      element("div", { class: "rx-body" }, this.stage, this.panel.root),
      element("footer", { class: "rx-foot" }, this.hint, this.status),
      help,
    );
  }

  available() {
    const map = this.capture().maps[this.state.map];
    return VIEWS.filter((view) => !view.available || view.always || this.capture().maps.some(view.available) || view.available(map));
  }

  renderTabs() {
    const { view } = this.state;
    const shown = this.available();
    const key = `${shown.map((one) => one.id)}|${view}`;
    if (key === this.tabsKey) return;
    const focused = this.tabs.contains(document.activeElement);
    this.tabsKey = key;
    const tab = (one) =>
      element("button", { type: "button", role: "tab", id: `rx-tab-${one.id}`, data: { view: one.id }, "aria-controls": "rx-stage", "aria-selected": String(one.id === view), tabIndex: one.id === view ? 0 : -1, onclick: () => this.showView(one.id) }, one.title);
    this.tabs.replaceChildren(...shown.map(tab));
    this.stage.setAttribute("aria-labelledby", `rx-tab-${view}`);
    const current = this.tabs.querySelector('[aria-selected="true"]');
    if (focused) current?.focus();
    if (current) this.tabs.scrollLeft = current.offsetLeft - 40;
  }

  walkTabs(event) {
    const shown = this.available();
    const at = shown.findIndex((view) => view.id === this.state.view);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.showView(shown.at(to % shown.length).id);
    this.tabs.querySelector('[aria-selected="true"]').focus();
  }

  showView(id) {
    // A view that needs a certain kind of map takes the last one of that kind.
    const view = VIEWS.find((one) => one.id === id);
    const { maps } = this.capture();
    const fits = !view.available || view.available(maps[this.state.map]);
    const last = fits ? -1 : maps.findLastIndex(view.available);
    this.set({ view: id, ...(last < 0 ? {} : { map: last }) });
  }

  fits() {
    // Whether the open view can show the chosen map.
    const view = VIEWS.find((one) => one.id === this.state.view);
    return !view.available || view.available(this.capture().maps[this.state.map]);
  }

  openView() {
    const view = VIEWS.find((one) => one.id === this.state.view);
    this.opened?.destroy?.();
    this.opened = null;
    this.stage.className = "rx-stage";
    this.stage.replaceChildren();
    if (!this.fits()) {
      this.stage.append(element("p", { class: "rx-quiet" }, view.missing?.(this) ?? "This view has nothing to show for this layer; choose another."));
      this.opened = { update: (changed) => (changed.has("map") || changed.has("capture")) && this.openView() };
    } else {
      this.opened = view.mount(this.stage, this);
    }
    this.hint.textContent = view.hint;
  }

  renderControls() {
    this.renderTabs();
    const { state } = this;
    const { maps } = this.capture();
    const uses = VIEWS.find((view) => view.id === state.view).uses;
    const parts = [];
    const inputs = this.inputs();
    if (inputs.length > 1 && inputs.every((n) => this.captures[n].step !== undefined)) parts.push(this.slider(inputs));
    else if (inputs.length > 1) parts.push(choose("Capture", inputs.map((n) => [n, this.captureName(n)]), this.answers()[0], (n) => this.set({ capture: Number(n) })));
    parts.push(choose("Layer", maps.map((map, n) => [n, map.name]), state.map, (n) => this.set({ map: Number(n), query: null, key: null })));
    if (state.view !== "heads") parts.push(choose("Head", maps[state.map].heads.map((_, n) => [n, this.headName(n)]), state.head, (n) => this.set({ head: Number(n) })));
    if (uses.includes("scale")) parts.push(choose("Scale", SCALES, state.scale, (scale) => this.set({ scale })));
    if (uses.includes("direction")) {
      const turn = (direction) => this.set({ direction, ...(direction === "in" ? { key: state.key ?? state.query } : { query: state.query ?? state.key }) });
      parts.push(choose("Direction", [["out", "what it attends to"], ["in", "what attends to it"]], state.direction, turn));
    }
    const focused = [...this.controls.querySelectorAll("select, input")].indexOf(document.activeElement);
    this.scaleStrip ??= element("span", { class: "rx-strip" });
    this.controls.replaceChildren(...parts, ...(["matrix", "pattern", "compare"].includes(state.view) ? [this.scaleStrip] : []));
    if (focused >= 0) this.controls.querySelectorAll("select, input")[focused]?.focus();
    this.renderStrip().catch(this.report);
  }

  async renderStrip() {
    const { head, scale } = this.state;
    const reader = this.reader();
    const layer = new WeightsLayer(reader, head, scale);
    const range = reader.map.deferred && scale !== "unit" ? { top: 1, signed: false, decades: layer.decades } : await layer.range();
    const top = scale === "row" ? "row max" : reader.map.deferred && scale !== "unit" ? "max" : range.top.toPrecision(3);
    const least = reader.map.deferred ? `max / 10^${range.decades.toFixed(1)}` : (range.top / 10 ** range.decades).toPrecision(1);
    const bottom = range.signed ? `−${top}` : scale === "log" ? least : "0";
    this.scaleStrip.replaceChildren(bottom, legend(range.signed, this.theme()), String(top));
  }

  slider(inputs) {
    const [chosen] = this.answers();
    const move = element("input", { type: "range", min: 0, max: inputs.length - 1, value: inputs.indexOf(chosen), "aria-label": "Training step", oninput: () => this.set({ capture: inputs[Number(move.value)] }) });
    return element("label", { class: "rx-field rx-slider" }, element("span", {}, `Step ${this.captures[chosen].step}`), move);
  }
}
