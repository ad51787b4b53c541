// What is drawn over and beside the cells of a pane (pane.js): grid, numbers, outlines, and the labels of queries and keys in the gutters.

import { tokenText } from "./dom.js";
import { inkOn } from "./colour.js";

const FONT = "12px system-ui, sans-serif";

export function gutterSizes(pane) {
  // [width, height] of the space for labels, as much as they need.
  const context = pane.canvas.getContext("2d");
  context.font = FONT;
  const most = pane.width < 500 ? 76 : 128;
  const wide = (labels) => labels.slice(0, 400).reduce((found, label) => Math.max(found, context.measureText(tokenText(label, 18)).width), 0);
  const room = (labels) => Math.min(most, Math.max(46, Math.ceil(wide(labels)) + 14));
  return [room(pane.layer.queryLabels), room(pane.layer.keyLabels)];
}

function shortLabel(context, label, room) {
  // The label, cut off where the gutter ends.
  let text = tokenText(label, 18);
  const points = [...text];
  while (points.length > 1 && context.measureText(text).width > room) text = `${points.slice(0, -1).join("")}…`, points.pop();
  return text;
}

function visibleCells(pane) {
  const { cell, x, y } = pane.view;
  const upto = (from, room, all) => Math.min(all - 1, Math.ceil(from + room / cell));
  return [Math.max(0, Math.floor(y)), upto(y, pane.height - pane.top, pane.layer.rows), Math.max(0, Math.floor(x)), upto(x, pane.width - pane.left, pane.layer.columns)];
}

export function drawGrid(pane, context, colours) {
  const [top, bottom, left, right] = visibleCells(pane);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (let i = top; i <= bottom + 1; i++) {
    const at = Math.round(pane.centreOf(i, 0)[1] - pane.view.cell / 2) + 0.5;
    context.moveTo(cornerOf(pane)[0], at);
    context.lineTo(pane.left + (pane.layer.columns - pane.view.x) * pane.view.cell, at);
  }
  for (let j = left; j <= right + 1; j++) {
    const at = Math.round(pane.centreOf(0, j)[0] - pane.view.cell / 2) + 0.5;
    context.moveTo(at, cornerOf(pane)[1]);
    context.lineTo(at, pane.top + (pane.layer.rows - pane.view.y) * pane.view.cell);
  }
  context.stroke();
}

export function drawNumbers(pane, context, colours) {
  const [top, bottom, left, right] = visibleCells(pane);
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = top; i <= bottom; i++) {
    const row = pane.layer.knownRow?.(i, () => pane.draw());
    if (!row) continue;
    for (let j = left; j <= right; j++) {
      const [px, py] = pane.centreOf(i, j);
      context.fillStyle = inkOn(row.values[j], row.range, row.scale, pane.app.theme());
      if (Math.abs(row.values[j]) >= 0.005) context.fillText(row.values[j].toFixed(2), px, py);
    }
  }
  context.textAlign = "start";
}

export function drawOutline(pane, context, at, rowColour, columnColour, width) {
  if (!at) return;
  const { cell } = pane.view;
  const [px, py] = pane.centreOf(...at);
  const size = Math.max(cell, 3);
  context.lineWidth = width;
  if (width > 1) {
    context.strokeStyle = rowColour;
    context.strokeRect(pane.centreOf(0, 0)[0] - cell / 2 - 1, py - size / 2, pane.layer.columns * cell + 2, size);
    context.strokeStyle = columnColour;
    context.strokeRect(px - size / 2, pane.centreOf(0, 0)[1] - cell / 2 - 1, size, pane.layer.rows * cell + 2);
  } else {
    context.strokeStyle = rowColour;
    context.strokeRect(px - size / 2, py - size / 2, size, size);
  }
}

export function drawLabels(pane, context, colours) {
  context.font = FONT;
  context.textBaseline = "middle";
  const [top, bottom, left, right] = visibleCells(pane);
  const { cell } = pane.view;
  const step = cell >= 9 ? Math.max(1, Math.ceil(13 / cell)) : [5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000].find((n) => n * cell >= 34) ?? 20000;
  const marked = pane.hover ?? pane.cursor;
  context.save();
  context.beginPath();
  context.rect(0, pane.top - 8, cornerOf(pane)[0], pane.height + 8); // the label of the first row is higher than a small cell
  context.clip();
  context.textAlign = "right";
  for (let i = Math.ceil(top / step) * step; i <= bottom; i += step) drawQueryLabel(pane, context, colours, i, marked);
  if (marked) drawQueryLabel(pane, context, colours, marked[0], marked);
  context.restore();
  context.save();
  context.beginPath();
  context.rect(pane.left - 8, 0, pane.width + 8, cornerOf(pane)[1]);
  context.clip();
  for (let j = Math.ceil(left / step) * step; j <= right; j += step) drawKeyLabel(pane, context, colours, j, marked);
  if (marked) drawKeyLabel(pane, context, colours, marked[1], marked);
  context.restore();
  context.textAlign = "start";
}

function cornerOf(pane) {
  // The upper left corner of the cells that are shown.
  return [pane.left - Math.min(0, pane.view.x) * pane.view.cell, pane.top - Math.min(0, pane.view.y) * pane.view.cell];
}

function drawQueryLabel(pane, context, colours, i, marked) {
  const at = pane.centreOf(i, 0)[1];
  const chosen = marked?.[0] === i;
  if (chosen) fillPlate(context, colours.stage, cornerOf(pane)[0] - pane.margin[0], at - 8, pane.margin[0], 16);
  context.fillStyle = chosen ? colours.query : colours.soft;
  context.fillText(shortLabel(context, labelName(pane, pane.layer.queryLabels, i, chosen), pane.margin[0] - 10), cornerOf(pane)[0] - 7, at);
}

function drawKeyLabel(pane, context, colours, j, marked) {
  const at = pane.centreOf(0, j)[0];
  const chosen = marked?.[1] === j;
  context.save();
  context.translate(at, cornerOf(pane)[1] - 6);
  context.rotate(-Math.PI / 2);
  if (chosen) fillPlate(context, colours.stage, 0, -8, pane.margin[1], 16);
  context.fillStyle = chosen ? colours.key : colours.soft;
  context.fillText(shortLabel(context, labelName(pane, pane.layer.keyLabels, j, chosen), pane.margin[1] - 10), 0, 0);
  context.restore();
}

function labelName(pane, labels, n, chosen) {
  // The token; where most tokens have no room, its position.
  return pane.view.cell >= 9 || chosen ? labels[n] : String(n);
}

function fillPlate(context, colour, ...box) {
  context.fillStyle = colour;
  context.fillRect(...box);
}
