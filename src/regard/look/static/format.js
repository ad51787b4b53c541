// The format, version 1: a JSON header and binary pieces by key. docs/explorer.md describes it.

const VERSION = 1;
const KEPT_TILES = 600;
const KEPT_ROWS = 400;

function checkHeader(header) {
  if (header.format !== "regard.explorer" || header.format_version !== VERSION) {
    throw new Error(`format ${header.format} ${header.format_version}; this page reads regard.explorer ${VERSION}`);
  }
  return header;
}

// A source has `header`, `live` (whether it can run the model) and `piece(capture id, key)`: a Uint8Array, or null if there is none.

export class FileSource {
  live = false;

  static async open(compressed) {
    const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = new DataView(bytes.buffer).getUint32(0, true);
    const source = new FileSource();
    source.header = checkHeader(JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))));
    source.bytes = bytes;
    source.start = 4 + size;
    return source;
  }

  static async openBase64(text) {
    const binary = atob(text);
    return FileSource.open(Uint8Array.from(binary, (c) => c.charCodeAt(0)));
  }

  async piece(capture, key) {
    const index = this.header.index;
    const at = index[`${capture}/${key}`];
    if (at) return this.bytes.slice(this.start + at[0], this.start + at[0] + at[1]);
    const [kind, map, head, first, last] = key.split("/");
    const whole = index[`${capture}/values/${map}/${head}`];
    if (!whole) return null;
    const described = this.header.captures.find((one) => one.id === capture).maps[map];
    const [from, width] = [this.start + whole[0], 4 * described.columns];
    if (kind === "values") return this.bytes.slice(from + first * width, from + last * width);
    if (kind !== "column") return null;
    const found = new Uint8Array(4 * described.rows);
    for (let i = 0; i < described.rows; i++) found.set(this.bytes.subarray(from + i * width + 4 * first, from + i * width + 4 * first + 4), 4 * i);
    return found;
  }
}

export class HttpSource {
  constructor(base, header, request) {
    Object.assign(this, { base, header: checkHeader(header), request, live: true });
  }

  async piece(capture, key) {
    const response = await this.request(`${this.base}/captures/${capture}/${key}`);
    if (response.status === 404) return null;
    if (!response.ok) throw new Error((await response.json()).error?.message ?? response.statusText);
    return new Uint8Array(await response.arrayBuffer());
  }
}

class Cache {
  // Promises by key, the oldest forgotten.
  constructor(size) {
    this.size = size;
    this.found = new Map();
  }

  get(key, load) {
    let value = this.found.get(key);
    if (value === undefined) value = load().catch((error) => (this.found.delete(key), Promise.reject(error)));
    this.found.delete(key);
    this.found.set(key, value);
    if (this.found.size > this.size) this.found.delete(this.found.keys().next().value);
    return value;
  }
}

export class Reader {
  // One map of one capture.
  constructor(source, capture, number) {
    Object.assign(this, { source, capture, number, map: capture.maps[number] });
    this.rows = this.map.rows;
    this.columns = this.map.columns;
    this.levels = this.map.levels;
    this.tiles = new Cache(KEPT_TILES);
    this.floats = new Cache(KEPT_ROWS);
    const named = (index, size, first) => (index === null ? Array.from({ length: size }, (_, n) => String(first + n)) : capture.labels[index]);
    this.queryLabels = named(this.map.row_labels, this.rows, this.map.first_row);
    this.keyLabels = named(this.map.column_labels, this.columns, 0);
    this.queryValues = this.map.row_values ?? null;
    this.keyValues = this.map.column_values ?? null;
  }

  tile(kind, head, level, i, j) {
    const key = `${kind}/${this.number}/${head}/${level}/${i}/${j}`;
    return this.tiles.get(key, async () => {
      const bytes = await this.source.piece(this.capture.id, key);
      if (!bytes) return null;
      const view = new DataView(bytes.buffer, bytes.byteOffset);
      const size = this.map.tile;
      const across = (all, n) => Math.min(size, Math.ceil(all / 2 ** level) - n * size);
      const made = { low: view.getFloat32(0, true), high: view.getFloat32(4, true), cells: bytes.subarray(8), exactTo: 0 };
      return Object.assign(made, { rows: across(this.rows, i), columns: across(this.columns, j) });
    });
  }

  statistics() {
    return this.floats.get("statistics", async () => {
      const bytes = await this.source.piece(this.capture.id, `statistics/${this.number}`);
      return JSON.parse(new TextDecoder().decode(bytes));
    });
  }

  // A Float32Array, or null where the file has no such piece.
  numbers(kind, ...where) {
    const key = [kind, this.number, ...where].join("/");
    return this.floats.get(key, async () => {
      const bytes = await this.source.piece(this.capture.id, key);
      return bytes && new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
    });
  }

  // The weights of a query over all keys: {values, exact}. Without exact rows, those of the tiles.
  async row(head, i) {
    const values = await this.numbers("values", head, i, i + 1);
    return values ? { values, exact: true } : this.#fromTiles(head, i, true);
  }

  async column(head, j) {
    const values = await this.numbers("column", head, j);
    return values ? { values, exact: true } : this.#fromTiles(head, j, false);
  }

  async values(head) {
    // The whole matrix; for small maps only.
    const values = await this.numbers("values", head, 0, this.rows);
    if (values) return values;
    const rows = await Promise.all(Array.from({ length: this.rows }, (_, i) => this.row(head, i)));
    const all = new Float32Array(this.rows * this.columns);
    rows.forEach((row, i) => all.set(row.values, i * this.columns));
    return all;
  }

  async #fromTiles(head, at, isRow) {
    const size = this.map.tile;
    const [band, inside] = [Math.floor(at / size), at % size];
    const values = new Float32Array(isRow ? this.columns : this.rows);
    for (let n = 0; n * size < values.length; n++) {
      const tile = await this.tile("tile", head, 0, isRow ? band : n, isRow ? n : band);
      const step = (tile.high - tile.low) / 255;
      for (let c = 0; c < (isRow ? tile.columns : tile.rows); c++) {
        const cell = isRow ? inside * tile.columns + c : c * tile.columns + inside;
        values[n * size + c] = tile.low + step * tile.cells[cell];
      }
    }
    return { values, exact: false };
  }
}

export function largest(values, count) {
  // Indices of the largest magnitudes, largest first.
  const order = Array.from(values.keys()).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  return order.slice(0, count).filter((n) => values[n] !== 0);
}
