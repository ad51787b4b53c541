// The page as a server serves it: the explorer with a prompt, and the API key where one is needed.

import { element } from "./dom.js";
import { HttpSource } from "./format.js";
import { LiveBar } from "./live.js";

const BASE = "/explorer";
const root = document.getElementById("explorer");
let apiKey = sessionStorage.getItem("regard-key");

async function request(url, options = {}) {
  const headers = { ...options.headers, ...(apiKey ? { Authorization: `Bearer ${apiKey}` } : {}) };
  const response = await fetch(url, { ...options, headers });
  if (response.status === 401) askForKey();
  return response;
}

function askForKey() {
  sessionStorage.removeItem("regard-key");
  const field = element("input", { type: "password", autocomplete: "off", name: "key", required: true });
  const submit = (event) => {
    event.preventDefault();
    apiKey = field.value;
    sessionStorage.setItem("regard-key", apiKey);
    start();
  };
  const form = element("form", { class: "rx-prompt", onsubmit: submit }, element("label", { class: "rx-field" }, element("span", {}, "API key"), field), element("button", { class: "rx-button rx-main" }, "Open"));
  root.classList.add("rx", "rx-start");
  root.replaceChildren(element("h1", {}, element("span", { class: "rx-brand" }, "regard")), element("p", { class: "rx-quiet" }, "This server asks for its API key, the same as for its API. The key stays in this tab."), form);
  field.focus();
}

async function start() {
  const response = await request(`${BASE}/model`);
  if (!response.ok) return;
  const header = await response.json();
  const bar = new LiveBar(root, new HttpSource(BASE, header, request), header);
  bar.open();
}

root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
addEventListener("hashchange", () => location.reload()); // another link in the same tab
start().catch((error) => (root.textContent = `The server does not answer: ${error.message}`));
