// Colours from weights. Sequential scales are monotone in lightness, the diverging ones run from orange to blue: both survive every kind of
// colour blindness and a black-and-white printer.

const STOPS = {
  light: {
    sequential: ["#ffffff", "#d3e5f5", "#a3c8e6", "#5b9fce", "#2470ae", "#0b3f7c", "#04132e"],
    diverging: ["#7a3502", "#c4690f", "#f2b76c", "#fbfbfb", "#8cbede", "#2f78b7", "#073a6d"],
  },
  dark: {
    sequential: ["#12171e", "#16314d", "#175f80", "#2a9290", "#74bf7c", "#cfe27a", "#fffbd1"],
    diverging: ["#ffd9a1", "#ef9a3c", "#8f4d10", "#181d24", "#1f5a8f", "#5aa9e6", "#cfe8ff"],
  },
};

function parseColour(text) {
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

const palettes = new Map();

export function palette(theme, signed) {
  // 256 colours, three bytes each.
  const key = `${theme}/${signed}`;
  if (!palettes.has(key)) {
    const stops = STOPS[theme][signed ? "diverging" : "sequential"].map(parseColour);
    const table = new Uint8Array(768);
    for (let n = 0; n < 256; n++) {
      const place = (n / 255) * (stops.length - 1);
      const at = Math.min(Math.floor(place), stops.length - 2);
      for (let c = 0; c < 3; c++) table[3 * n + c] = Math.round(stops[at][c] + (place - at) * (stops[at + 1][c] - stops[at][c]));
    }
    palettes.set(key, table);
  }
  return palettes.get(key);
}

// Where a weight is on the palette, 0 to 255. `range`: {top, signed, decades}; scales: linear, or log over `decades` powers of ten below the top.
export function colourIndex(value, range, scale) {
  let share = range.top > 0 ? Math.min(Math.abs(value) / range.top, 1) : 0;
  if (scale === "log" && share > 0) share = Math.max(0, 1 + Math.log10(share) / (range.decades ?? 2.5));
  if (!range.signed) return Math.round(255 * share);
  return Math.round(127.5 + (value < 0 ? -127.5 : 127.5) * share);
}

export function cssColour(value, range, scale, theme) {
  const n = 3 * colourIndex(value, range, scale);
  const table = palette(theme, range.signed);
  return `rgb(${table[n]} ${table[n + 1]} ${table[n + 2]})`;
}

export function inkOn(value, range, scale, theme) {
  // The colour of text on this colour, with a contrast of at least 4.5 (WCAG 2): white up to a luminance of 0.18, black from there on.
  const n = 3 * colourIndex(value, range, scale);
  const [r, g, b] = [...palette(theme, range.signed).subarray(n, n + 3)].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance < 0.18 ? "#ffffff" : luminance < 0.24 ? "#000000" : "#1b1f24";
}

export function paintTile(tile, range, scale, theme, maxima) {
  // A canvas with a pixel per cell. With `maxima`, each row is scaled to its own largest magnitude.
  const canvas = document.createElement("canvas");
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(tile.columns, tile.rows);
  const table = palette(theme, range.signed);
  const step = (tile.high - tile.low) / 255;
  let lookup = null;
  for (let i = 0; i < tile.rows; i++) {
    if (maxima || !lookup) {
      const here = maxima ? { top: maxima[i], signed: range.signed } : range;
      lookup = Uint8Array.from({ length: 256 }, (_, n) => colourIndex(tile.low + step * n, here, scale));
    }
    for (let j = 0; j < tile.columns; j++) {
      const at = i * tile.columns + j;
      const n = 3 * lookup[tile.cells[at]];
      image.data[4 * at] = table[n];
      image.data[4 * at + 1] = table[n + 1];
      image.data[4 * at + 2] = table[n + 2];
      image.data[4 * at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

export function legend(signed, theme) {
  // The palette as a strip.
  const canvas = document.createElement("canvas");
  canvas.width = 256;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const table = palette(theme, signed);
  for (let n = 0; n < 256; n++) {
    context.fillStyle = `rgb(${table[3 * n]} ${table[3 * n + 1]} ${table[3 * n + 2]})`;
    context.fillRect(n, 0, 1, 1);
  }
  return canvas;
}
