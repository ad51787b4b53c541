// The explorer in a notebook: an anywidget module. The whole file comes as one value, so nothing is asked of the kernel.

import { FileSource } from "./format.js";
import { Explorer } from "./app.js";

async function render({ model, el }) {
  const root = document.createElement("div");
  root.classList.add("rx-embedded");
  root.dataset.lmSuppressShortcuts = "true"; // keys belong to the explorer while it has the focus, not to JupyterLab
  el.append(root);
  const data = model.get("data");
  const source = await FileSource.open(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  new Explorer(root, source, true);
}

export default { render };
