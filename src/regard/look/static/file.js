// The page in one file: the data are in the document.

import { FileSource } from "./format.js";
import { Explorer } from "./app.js";

const target = document.getElementById("explorer");
FileSource.openBase64(document.getElementById("data").textContent).then(
  (source) => new Explorer(target, source),
  (error) => (target.textContent = `This page cannot be read: ${error.message}`),
);
