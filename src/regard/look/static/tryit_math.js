// The mathematics behind the sliders of the lineage page: softmax, windows, random features, hashes. Matrices are arrays of rows.

export function randomNumbers(seed) {
  // Normally distributed numbers, the same ones for the same seed (mulberry32 and Box–Muller).
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

export function randomMatrix(rows, columns, seed) {
  const next = randomNumbers(seed);
  return Array.from({ length: rows }, () => Array.from({ length: columns }, next));
}

export function dot(a, b) {
  return a.reduce((sum, x, n) => sum + x * b[n], 0);
}

export function softmax(scores) {
  // Of one row; −∞ is not allowed, and a row of nothing else is zeros.
  const top = Math.max(...scores);
  if (top === -Infinity) return scores.map(() => 0);
  const parts = scores.map((score) => Math.exp(score - top));
  const sum = parts.reduce((a, b) => a + b, 0);
  return parts.map((part) => part / sum);
}

export function smooth(query, keys, values, temperature) {
  // softmax(−(q − k)² / τ): the mean of all values where τ is large, the nearest neighbour's where it is small.
  const weights = softmax(keys.map((key) => -((query - key) ** 2) / temperature));
  return { weights, output: dot(weights, values) };
}

export function effectiveKeys(weights) {
  // exp of the entropy: 1 if one key has all the weight, n if n keys share it.
  return Math.exp(-weights.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0));
}

export function attention(queries, keys, scale, allowed = () => true) {
  return queries.map((q, i) => softmax(keys.map((k, j) => (allowed(i, j) ? scale * dot(q, k) : -Infinity))));
}

export function windowed(width, first) {
  // Causal: the last `width` tokens, oneself included, and the `first` ones.
  return (i, j) => j <= i && (i - j < width || j < first);
}

export function randomFeatures(x, directions) {
  // exp(ω·x − |x|²/2) / √F: positive, and their dot products are exp(q·k) on average.
  const half = dot(x, x) / 2;
  return directions.map((w) => Math.exp(dot(w, x) - half) / Math.sqrt(directions.length));
}

export function featureAttention(queries, keys, directions) {
  const [phiQ, phiK] = [queries, keys].map((all) => all.map((x) => randomFeatures(x, directions)));
  return phiQ.map((q) => {
    const row = phiK.map((k) => dot(q, k));
    const sum = row.reduce((a, b) => a + b, 0);
    return row.map((w) => w / sum);
  });
}

export function bucketOf(x, rotation) {
  // argmax [xR; −xR]: twice as many buckets as R has columns.
  const turned = rotation.map((column) => dot(x, column));
  const both = [...turned, ...turned.map((value) => -value)];
  return both.indexOf(Math.max(...both));
}

export function hashRounds(points, buckets, rounds, seed) {
  // The bucket of every point, per round. The first rounds are the same however many follow.
  return Array.from({ length: rounds }, (_, round) => {
    const rotation = randomMatrix(buckets / 2, points[0].length, seed + 1000 * round);
    return points.map((x) => bucketOf(x, rotation));
  });
}

export function difference(a, b) {
  // ‖A − B‖ / ‖B‖, Frobenius.
  const [apart, size] = a.reduce(([x, y], row, i) => [x + row.reduce((s, w, j) => s + (w - b[i][j]) ** 2, 0), y + dot(b[i], b[i])], [0, 0]);
  return Math.sqrt(apart / size);
}
