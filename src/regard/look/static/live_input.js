// What the model is given: a text to type, or a file to choose or to drop. Both have root, focus(), valid(), and asked(): their part of a request.

import { element, readable } from "./dom.js";

export class TextInput {
  what = "Give the model a text, and see what every layer and head attends to.";

  constructor(about, submit) {
    const placeholder = about.generates ? "A text to read, or to continue" : "A text to read";
    const onkeydown = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit();
    const [first, ...others] = about.fields;
    this.areas = [first, ...others].map(({ name, required }) => element("textarea", { name: "text", rows: 2, required, "aria-label": name, placeholder: others.length ? name : placeholder, onkeydown }));
    const optional = this.areas.filter((area) => !area.required);
    this.more = element("button", { type: "button", class: "rx-button", onclick: () => (this.#reveal(), optional[0].focus()) }, "Add a second text");
    for (const area of optional) area.hidden = true;
    this.root = element("div", { class: "rx-texts" }, this.areas, optional.length ? this.more : null);
  }

  #reveal() {
    for (const area of this.areas) area.hidden = false;
    this.more.hidden = true;
  }

  focus() {
    this.areas[0].focus();
  }

  valid() {
    return this.areas.every((area) => area.reportValidity());
  }

  filled() {
    return this.areas.every((area) => !area.required || area.value.trim() !== "");
  }

  text() {
    // Tabs separate the parts of an input, so none may stay inside them.
    if (this.areas.length === 1) return this.areas[0].value;
    return this.areas.map((area) => area.value.replace(/[\t\r\n]+/g, " ").trim()).join("\t").replace(/\t+$/, "");
  }

  asked() {
    return { text: this.text() };
  }

  write(text) {
    const [first, ...others] = text.split("\t");
    const values = this.areas.length === 1 ? [text] : [first, others.join(" ")];
    this.areas.forEach((area, n) => (area.value = values[n]));
    if (this.areas.some((area) => area.hidden && area.value)) this.#reveal();
  }

  // What a capture was made of, and whether it still stands here unchanged.
  restore({ text }) {
    this.write(text);
  }

  holds({ text }) {
    return this.text() === text;
  }
}

export class FileInput {
  what = "Give the model an image or a clip, and see what every layer and head attends to.";

  constructor(about, submit, send) {
    // `send(bytes)` gives the number by which the server knows the file; it is sent as soon as it is chosen, and once.
    Object.assign(this, { submit, send, file: null });
    this.chooser = element("input", { type: "file", accept: "image/*,.npy", "aria-label": "Image or clip", onchange: () => this.take(this.chooser.files[0]) });
    this.name = element("span", { class: "rx-quiet", "aria-live": "polite" }, "or drop one here");
    this.root = element("div", { class: "rx-drop", ondragover: (event) => event.preventDefault(), ondrop: (event) => this.#drop(event) }, this.chooser, this.name);
  }

  #drop(event) {
    event.preventDefault();
    if (event.dataTransfer.files.length) this.take(event.dataTransfer.files[0]);
  }

  async take(file) {
    if (!file) return;
    this.file = null;
    this.name.textContent = `sending ${readable(file.name, 40)} …`;
    this.name.classList.remove("rx-error");
    try {
      this.file = await this.send(await file.arrayBuffer());
      this.label = readable(file.name, 40);
      this.name.textContent = this.chooser.files[0] === file ? "or drop another one here" : readable(file.name, 60); // the chooser names its own
      this.submit();
    } catch (error) {
      this.name.textContent = error.message;
      this.name.classList.add("rx-error");
    }
  }

  focus() {
    this.chooser.focus();
  }

  valid() {
    if (!this.file) this.name.textContent = "choose a file first";
    return Boolean(this.file);
  }

  filled() {
    return Boolean(this.file);
  }

  asked() {
    return { file: this.file };
  }

  restore({ file, name }) {
    [this.file, this.name.textContent] = [file, name];
  }

  holds({ file }) {
    return this.file === file;
  }
}
