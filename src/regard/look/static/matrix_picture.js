// A small matrix as a picture of one pixel per cell, which CSS enlarges.

import { colourIndex, palette } from "./colour.js";

export function paintMatrix(canvas, values, { size, top, signed, theme }) {
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  const table = palette(theme, signed);
  values.forEach((value, at) => {
    const n = 3 * colourIndex(value, { top, signed }, "linear");
    image.data.set([table[n], table[n + 1], table[n + 2], 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
}

export function decodePicture({ cells, signed }) {
  // Bytes back to shares of the largest weight.
  return Array.from(atob(cells), (c) => (signed ? c.charCodeAt(0) / 127.5 - 1 : c.charCodeAt(0) / 255));
}
