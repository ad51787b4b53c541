// Runs the model: a text or a file to read, a text to continue; heads to ablate; another mechanism; an earlier checkpoint.

import { choose, element, linesText, percent, readable, signed, tokenText } from "./dom.js";
import { Explorer } from "./app.js";
import { FileInput, TextInput } from "./live_input.js";
import { tokenLine } from "./text_view.js";

const LONGEST_LINK = 8000; // characters of a text in the address
const FOLLOW = 120; // milliseconds per step of a search: a small model is faster than the eye

export class LiveBar {
  constructor(root, source, about) {
    Object.assign(this, { root, source, about, ablations: [], mechanism: "", step: "", busy: false });
    const submit = () => this.capture();
    this.input = about.inputs === "file" ? new FileInput(about, submit, (bytes) => this.upload(bytes)) : new TextInput(about, submit);
    this.length = element("input", { type: "number", min: 1, max: 512, value: 24 });
    this.heat = element("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0 });
    this.run = element("button", { type: "submit", class: "rx-button rx-main" }, "Show attention");
    this.write = element("button", { type: "button", class: "rx-button", onclick: () => this.generate() }, "Continue");
    this.choices = element("div", { class: "rx-controls rx-choices" });
    this.stream = element("div", { class: "rx-stream", hidden: true });
    this.result = element("div", { class: "rx-result", role: "status" });
    const beam = element("button", { type: "button", class: "rx-button", title: "The beam search, step by step", onclick: () => this.watch() }, "Watch the beam");
    const generation = about.searches
      ? [(this.write = beam)]
      : about.generates
      ? [this.write, element("label", { class: "rx-field" }, element("span", {}, "Tokens"), this.length), element("label", { class: "rx-field" }, element("span", {}, "Temperature"), this.heat)]
      : [];
    this.form = element("form", { class: "rx-prompt", onsubmit: (event) => (event.preventDefault(), this.capture()) }, this.input.root, element("div", { class: "rx-inline-plain" }, this.run, ...generation));
    this.part = element("section", { "aria-label": "Run the model" }, this.form, this.choices, this.stream, this.result);
  }

  open() {
    // Before the first text there is nothing to explore.
    this.root.classList.add("rx", "rx-start");
    const { title, model, max_length: length, ablates } = this.about;
    const facts = [model, length && this.about.inputs === "text" ? `reads up to ${length.toLocaleString("en")} tokens` : "", ablates.length ? `${ablates.length} attention ${ablates.length === 1 ? "layer" : "layers"}` : ""];
    this.start = element("p", { class: "rx-examples", hidden: true });
    this.root.replaceChildren(
      element("h1", {}, element("span", { class: "rx-brand" }, "regard"), element("span", { class: "rx-title" }, readable(title, 60))),
      element("p", { class: "rx-quiet rx-model" }, facts.filter(Boolean).join(" · ")),
      element("p", { class: "rx-quiet" }, this.input.what),
      this.part,
      this.start,
    );
    this.renderChoices();
    this.input.focus();
    this.offerExample().catch(() => {}); // a page without an example is a page
    this.reopen();
  }

  async offerExample() {
    const response = await this.source.request(`${this.source.base}/example`);
    const { text } = response.ok ? await response.json() : {};
    if (!text || this.about.inputs !== "text") return;
    const fill = () => (this.input.write(text), this.input.focus());
    this.start.replaceChildren("From the data of this run: ", element("button", { type: "button", class: "rx-button", dir: "auto", onclick: fill }, readable(text, 80)));
    this.start.hidden = false;
  }

  // -- the address -----------------------------------------------------------------------------------------------------

  given() {
    // What the shown capture was made of; a file and a long text have no place in an address.
    const { text, ablate, mechanism, step } = this.shown?.request ?? {};
    if (!text || text.length > LONGEST_LINK) return [];
    return [["text", text], ...ablate.map(({ layer, head, how }) => ["ablate", `${layer}:${head}:${how}`]), ...(mechanism ? [["mechanism", mechanism]] : []), ...(step === null ? [] : [["step", step]])];
  }

  reopen() {
    // What a link says; where it has no text, its view would be that of another one.
    const linked = new URLSearchParams(location.hash.slice(1));
    const text = linked.get("text");
    if (!text || this.about.inputs !== "text") return history.replaceState(null, "", location.pathname);
    const ablate = linked.getAll("ablate").map((one) => one.match(/^(.+):(\d{1,9}):(zero|uniform)$/)).filter(Boolean);
    this.restore({ text, ablate: ablate.map(([, layer, head, how]) => ({ layer, head: Number(head), how })), mechanism: linked.get("mechanism"), step: linked.get("step") });
    this.capture();
  }

  restore(request) {
    this.input.restore(request);
    this.ablations = request.ablate;
    this.mechanism = request.mechanism ?? "";
    this.step = request.step === null ? "" : String(request.step);
    this.renderChoices();
  }

  follow() {
    // The choices and the result are those of the capture that is shown; what has been typed since then stays.
    const { id, of = id } = this.explorer.capture();
    const shown = this.explorer.captures.find((one) => one.id === of);
    if (shown === this.shown) return;
    const typed = this.shown && !this.input.holds(this.shown.request) ? this.input.asked() : null;
    this.shown = shown;
    this.restore(typed ? { ...shown.request, ...typed, name: this.input.name?.textContent } : shown.request);
    this.tell(shown);
  }

  // -- what to change --------------------------------------------------------------------------------------------------

  renderChoices() {
    const parts = [];
    const { mechanisms, steps } = this.about;
    const again = () => this.explorer && this.input.filled() && this.capture();
    if (mechanisms.length) {
      const all = [["", "as trained"], ...mechanisms.map((name) => [name, name])];
      parts.push(choose("Mechanism", all, this.mechanism, (name) => ((this.mechanism = name), again())));
    }
    if (steps.length) {
      const all = [["", "final"], ...steps.map((step) => [step, `step ${step}`])];
      parts.push(choose("Parameters", all, this.step, (step) => ((this.step = step), again())));
    }
    const here = this.explorer && this.explorer.capture().maps[this.explorer.state.map];
    if (here && this.about.ablates.includes(here.name) && here.heads[this.explorer.state.head] !== "mean") {
      const [layer, head] = [here.name, Number(here.heads[this.explorer.state.head])];
      const add = (how) => {
        this.ablations = [...this.ablations.filter((one) => one.layer !== layer || one.head !== head), { layer, head, how }];
        this.renderChoices();
        again();
      };
      const button = (how, title) => element("button", { type: "button", class: "rx-button", title, onclick: () => add(how) }, how);
      parts.push(element("span", { class: "rx-field", role: "group", "aria-label": "Ablate the chosen head" }, element("span", {}, `Ablate head ${head}`), button("zero", `${layer}: its output becomes zero`), button("uniform", `${layer}: it attends to all allowed keys equally`)));
    }
    for (const one of this.ablations) {
      const drop = () => {
        this.ablations = this.ablations.filter((other) => other !== one);
        this.renderChoices();
        again();
      };
      const name = `${one.layer} ${one.head}: ${one.how}`;
      parts.push(element("span", { class: "rx-chip" }, name, element("button", { type: "button", "aria-label": `Remove ${name}`, onclick: drop }, "×")));
    }
    const focused = this.choices.contains(document.activeElement);
    this.choices.replaceChildren(...parts);
    if (focused) this.choices.querySelector("select, button")?.focus();
  }

  asked(more = {}) {
    return JSON.stringify({ ...this.input.asked(), ablate: this.ablations, mechanism: this.mechanism || null, step: this.step === "" ? null : Number(this.step), ...more });
  }

  async upload(bytes) {
    return (await (await this.post("files", bytes, "application/octet-stream")).json()).file;
  }

  async post(path, body, type = "application/json") {
    const response = await this.source.request(`${this.source.base}/${path}`, { method: "POST", body, headers: { "Content-Type": type } });
    if (response.ok) return response;
    const { error } = await response.json();
    throw new Error(error?.message ?? response.statusText);
  }

  async working(task) {
    if (this.busy) return;
    this.busy = this.run.disabled = this.write.disabled = true;
    this.result.classList.remove("rx-error");
    try {
      await task();
    } catch (error) {
      this.result.classList.add("rx-error");
      this.result.textContent = error.message;
    } finally {
      this.busy = this.run.disabled = this.write.disabled = false;
    }
  }

  // -- running -------------------------------------------------------------------------------------------------------

  capture() {
    if (!this.input.valid()) return;
    return this.working(async () => {
      this.result.textContent = "Running …";
      this.show(await this.read());
      this.stream.hidden = true;
    });
  }

  async read() {
    // The capture of what is given, and how it was asked for.
    const body = this.asked();
    const { label, name } = this.input;
    const capture = await (await this.post("captures", body)).json();
    return Object.assign(capture, { request: { ...JSON.parse(body), name: name?.textContent }, label });
  }

  show(capture) {
    if (this.explorer) {
      this.explorer.addCapture(capture);
    } else {
      const { alternatives = [], ...first } = capture;
      this.source.header.captures.push(first, ...alternatives);
      this.root.classList.remove("rx-start");
      this.root.replaceChildren();
      this.explorer = new Explorer(this.root, this.source);
      this.explorer.live.append(this.part);
      this.explorer.given = () => this.given();
      this.explorer.onchange = (changed) => (changed.has("capture") || changed.has("captures") ? this.follow() : this.renderChoices());
      this.follow();
      this.explorer.remember();
    }
  }

  tell({ loss, next, output, baseline, note }) {
    const parts = [];
    if (loss !== undefined && loss !== null) {
      parts.push(element("span", {}, "Loss ", element("b", {}, loss.toFixed(3)), " nats per token"));
      if (baseline?.loss) parts.push(change(loss - baseline.loss));
    }
    if (next) parts.push(element("span", {}, "Next: ", ...next.flatMap(([token, share], n) => [n ? " · " : "", element("b", { dir: "auto" }, tokenText(token, 20)), ` ${percent(share)}`])));
    if (output) parts.push(element("span", {}, "Output: ", element("b", { dir: "auto" }, linesText(output))));
    if (baseline?.output && baseline.output !== output) parts.push(element("span", { class: "rx-worse" }, "unchanged model: ", element("b", { dir: "auto" }, linesText(baseline.output))));
    if (baseline?.output && baseline.output === output) parts.push(element("span", {}, "the same as without the change"));
    if (note) parts.push(element("span", { class: "rx-quiet" }, note));
    this.result.replaceChildren(...parts);
  }

  watch() {
    if (!this.input.valid()) return;
    return this.working(async () => {
      this.result.textContent = "Searching …";
      const response = await this.post("generate", this.asked());
      if (!this.explorer) this.show(await this.read()); // whose labels name the source
      this.stream.hidden = false;
      const { labels, maps } = this.explorer.capture();
      const source = labels[maps.findLast((map) => map.cross)?.column_labels] ?? [];
      for await (const { error, beam } of serverEvents(response)) {
        if (error) throw new Error(error.message);
        if (!beam) continue;
        const read = tokenLine(source, "keys", () => {}, "Source, shaded by the attention of the best prefix");
        const { row } = beam.find(({ ended }) => !ended) ?? beam[0];
        read.shade([...row], { top: Math.max(...row), signed: false }, "linear", this.root.dataset.theme);
        const line = ({ tokens, score, ended }) => {
          const written = tokenLine(tokens, "queries", () => {}, ended ? "Hypothesis that has ended" : "Prefix");
          if (!ended) written.choose(tokens.length - 1);
          return element("li", { class: ended ? "rx-ended" : "" }, element("span", { class: "rx-number" }, signed(score, 2)), written);
        };
        this.stream.replaceChildren(read, element("ol", { class: "rx-beam", "aria-label": "Prefixes of the beam with their log-probabilities" }, beam.map(line)));
        await new Promise((done) => setTimeout(done, FOLLOW));
      }
      this.stream.hidden = true; // the answers are in the alignment view
      this.show(await this.read());
    });
  }

  generate() {
    if (!this.input.valid()) return;
    return this.working(async () => {
      this.result.textContent = "Writing …";
      const state = this.explorer?.state;
      const where = state ? { layer: Math.min(state.map, this.explorer.capture().maps.filter((map) => !map.derived).length - 1), head: state.head } : {};
      const response = await this.post("generate", this.asked({ max_tokens: Number(this.length.value), temperature: Number(this.heat.value), seed: Math.floor(Math.random() * 2 ** 31), ...where }));
      this.stream.hidden = false;
      const tokens = [];
      const theme = this.root.dataset.theme;
      for await (const event of serverEvents(response)) {
        if (event.error) throw new Error(event.error.message);
        if (event.tokens) tokens.push(...event.tokens);
        if (event.token !== undefined) tokens.push(event.token);
        if (event.text !== undefined) this.input.write(event.text);
        const line = tokenLine(tokens, "queries", () => {}, "Text so far");
        if (event.row) line.shade([...event.row, 0], { top: Math.max(...event.row), signed: false }, "linear", theme);
        line.choose(tokens.length - 1);
        this.stream.replaceChildren(line);
      }
      this.show(await this.read());
    });
  }
}

function change(by) {
  const text = `${by >= 0.0005 ? "+" : ""}${signed(by, 3)} compared with the unchanged model`;
  return element("span", { class: by > 0.0005 ? "rx-worse" : "" }, text);
}

async function* serverEvents(response) {
  // Values of "data:" lines as they arrive.
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) yield JSON.parse(event.replace(/^data: /, ""));
  }
}
