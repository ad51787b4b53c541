// What a matrix pane draws: weights, the pattern that allows them, or the difference of two maps. Each has rows, columns, levels, labels,
// paint(level, i, j, painter) and value(i, j).

class Layer {
  constructor(reader) {
    Object.assign(this, { reader, rows: reader.rows, columns: reader.columns, levels: reader.levels, tileSize: reader.map.tile });
    Object.assign(this, { queryLabels: reader.queryLabels, keyLabels: reader.keyLabels });
  }
}

export class WeightsLayer extends Layer {
  constructor(reader, head, scale) {
    super(reader);
    Object.assign(this, { head, scale, known: new Map() });
    this.decades = Math.max(2, Math.log10(reader.columns) + 0.7); // equal weights of all keys can still be seen
  }

  async range() {
    // The coarsest level has the largest weight of the whole map in one tile. Of a map that is computed while it is read that would take
    // long: there it is the largest weight seen so far.
    if (this.scale === "unit") return { top: 1, signed: this.reader.map.signed };
    if (this.reader.map.deferred) return this.seen ?? { top: 0, signed: false };
    const tile = await this.reader.tile("tile", this.head, this.levels - 1, 0, 0);
    return { top: Math.max(tile.high, -tile.low), signed: tile.low < 0, decades: this.decades };
  }

  #see(tile) {
    const top = Math.max(tile.high, -tile.low);
    if (this.seen && top <= this.seen.top) return;
    this.seen = { top, signed: tile.low < 0 || Boolean(this.seen?.signed), decades: this.decades };
    this.onrange?.();
  }

  async paint(level, i, j, painter) {
    const tile = await this.reader.tile("tile", this.head, level, i, j);
    if (this.reader.map.deferred) this.#see(tile);
    const range = await this.range();
    if (this.scale !== "row") return painter(tile, range, this.scale, null);
    const maxima = await this.reader.numbers("maxima", this.head);
    const [block, first] = [2 ** level, i * this.tileSize * 2 ** level];
    const pooled = Array.from({ length: tile.rows }, (_, n) => Math.max(...maxima.subarray(first + n * block, first + (n + 1) * block)));
    return painter(tile, range, "linear", pooled);
  }

  async value(i, j) {
    const { values, exact } = await this.reader.row(this.head, i);
    return { value: values[j], exact };
  }

  knownRow(i, arrived) {
    // The row if it has been read, with its colours; else it is read, and `arrived` is called.
    if (!this.known.has(i)) {
      this.known.set(i, null);
      Promise.all([this.reader.row(this.head, i), this.range()]).then(([{ values }, range]) => {
        const top = this.scale === "row" ? values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) : range.top;
        this.known.set(i, { values, range: { ...range, top }, scale: this.scale });
        arrived();
      });
    }
    return this.known.get(i);
  }
}

export class AllowedLayer extends Layer {
  constructor(reader, head) {
    super(reader);
    this.head = head;
  }

  async range() {
    return { top: 2.4, signed: false }; // allowed pairs in the middle of the palette, not as loud as a weight of one
  }

  async paint(level, i, j, painter) {
    return painter(await this.reader.tile("allowed", this.head, level, i, j), await this.range(), "linear", null);
  }

  async value(i, j) {
    const size = this.tileSize;
    const tile = await this.reader.tile("allowed", this.head, 0, Math.floor(i / size), Math.floor(j / size));
    return { value: tile.cells[(i % size) * tile.columns + (j % size)] / 255, exact: true };
  }
}

export class DifferenceLayer extends Layer {
  // a − b; both are read at the same level, so from afar it is the difference of the largest weights of each block
  constructor(a, b) {
    super(a.reader);
    Object.assign(this, { a, b });
  }

  async range() {
    const [a, b] = await Promise.all([this.a.range(), this.b.range()]);
    return { top: Math.max(a.top, b.top), signed: true };
  }

  async paint(level, i, j, painter) {
    const [a, b] = await Promise.all([this.a, this.b].map(({ reader, head }) => reader.tile("tile", head, level, i, j)));
    const range = await this.range();
    const cells = new Uint8Array(a.cells.length);
    for (let n = 0; n < cells.length; n++) {
      const apart = a.low + ((a.high - a.low) * a.cells[n]) / 255 - b.low - ((b.high - b.low) * b.cells[n]) / 255;
      cells[n] = Math.round(127.5 + (127.5 * apart) / (range.top || 1));
    }
    return painter({ ...a, cells, low: -range.top, high: range.top }, range, "linear", null);
  }

  async value(i, j) {
    const [a, b] = await Promise.all([this.a.value(i, j), this.b.value(i, j)]);
    return { value: a.value - b.value, exact: a.exact && b.exact };
  }
}
