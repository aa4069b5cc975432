// Parts that all charts share: colours of both schemes, figures with units, tooltips, time axes, bands.

import { dark } from "./scheme.js";
export { dark };

export const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70",
  "#7ad151", "#bddf26", "#fde725"];
// Okabe and Ito's palette, distinguishable with any kind of colour vision; without its black.
export const PATHS_LIGHT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a642", "#8c6bb1"];
export const PATHS_DARK = ["#5aaeea", "#f0b43c", "#2fc598", "#e39cc6", "#a9d8f5", "#ff8a4c", "#d6c75a", "#b79ae0"];
export const LOSS = "#ff5a36";
export const STEPS = [1, 2, 5];

export const ink = () => dark()
  ? { text: "#e6e9ef", dim: "#8b94a5", line: "#2a303b", card: "#151a21", tip: "#1d232d", none: "#1a2028", grey: "#5c6575", node: "#222a35", lit: "#6cb2f2" }
  : { text: "#1a2230", dim: "#5e6878", line: "#dfe3ea", card: "#ffffff", tip: "#ffffff", none: "#f3f5f8", grey: "#a4acb9", node: "#eef1f6", lit: "#2a6fb5" };
export const color = (k) => (dark() ? PATHS_DARK : PATHS_LIGHT)[k % 8];

// Link states in Okabe and Ito's colours. Shapes and dashes repeat the information.
export const STATE_NAMES = ["unknown", "UP", "GREY", "FLAPPING", "DOWN"];
const STATES_LIGHT = ["#7d8694", "#5d7f9e", "#d98f00", "#a85f96", "#d04a00"];
const STATES_DARK = ["#828c9e", "#5f86a8", "#f0b43c", "#e39cc6", "#ff7a3c"];
export const stateInk = (k) => (dark() ? STATES_DARK : STATES_LIGHT)[k];
export const ramp = () => (dark() ? VIRIDIS : [...VIRIDIS].reverse());
const SAFE = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
export const text = (s) => String(s).replace(/[&<>"']/g, (c) => SAFE[c]);

export function three(v) {
  const a = Math.abs(v);
  return v.toFixed(a >= 99.95 ? 0 : a >= 9.995 ? 1 : 2);
}
export function delay(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]])
    if (Math.abs(ns) >= size * 0.9995) return `${three(ns / size)} ${unit}`;
  return `${three(ns)} ns`;
}
export function short(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]])
    if (Math.abs(ns) >= size * 0.9995) return `${+(ns / size).toPrecision(3)} ${unit}`;
  return `${+ns.toPrecision(3)} ns`;
}
export function bytes(size) {
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (Math.abs(size) >= unit * 0.9995) return `${three(size / unit)} ${name}`;
  return `${size.toFixed(0)} B`;
}
export function percent(share) {
  const p = share * 100;
  return p === 0 ? "0%" : p < 0.01 ? "<0.01%" : p < 10 ? `${+p.toPrecision(2)}%` : `${p.toFixed(0)}%`;
}
export const clockTime = (ms) => new Date(ms).toISOString().slice(11, 19);
export function below(v) {
  const decade = 10 ** Math.floor(Math.log10(v));
  return decade * [...STEPS].reverse().find((s) => s * decade <= v * 1.0001);
}
export function above(v) {
  const decade = 10 ** Math.floor(Math.log10(v));
  return decade * [...STEPS, 10].find((s) => s * decade >= v * 0.9999);
}
export function tooltip(c) {
  return {
    backgroundColor: c.tip, borderColor: c.line, textStyle: { color: c.text, fontSize: 12 },
    extraCssText: "box-shadow:0 4px 18px rgba(0,0,0,.25);border-radius:6px", confine: true,
  };
}
export const row = (name, value) => `<tr><td style="padding-right:14px;opacity:.7">${name}</td>` +
  `<td style="text-align:right;font-variant-numeric:tabular-nums">${value}</td></tr>`;
export const heading = (s) => `<div style="font-weight:600;margin-bottom:4px">${s}</div><table style="border-spacing:0">`;
export function timeAxis(c, index, t, labels) {
  return {
    type: "time", gridIndex: index, min: t[0], max: t.at(-1), axisLine: { lineStyle: { color: c.line } },
    axisTick: { show: false }, splitLine: { show: false },
    axisLabel: { show: labels, color: c.dim, fontSize: 11, hideOverlap: true, formatter: (v) => clockTime(v) },
    axisPointer: { label: { show: false } },
  };
}
// A filled area between two lines, open where either has no value: nobody measured there.
export function band(id, index, t, low, high, fill, opacity) {
  return {
    id, type: "custom", xAxisIndex: index, yAxisIndex: index, silent: true, animation: false, clip: true, z: 1,
    data: [[t[0] ?? 0, 1]], encode: { x: -1, y: -1 }, tooltip: { show: false },
    renderItem: (params, api) => {
      const areas = stretches(low, high).map((stretch) => {
        const up = stretch.map((i) => api.coord([t[i], high[i]])), down = stretch.map((i) => api.coord([t[i], low[i]]));
        return { type: "polygon", shape: { points: up.concat(down.reverse()) }, style: { fill, opacity } };
      });
      return areas.length ? { type: "group", children: areas } : null;
    },
  };
}
// The indices at which both have a value, one list for each unbroken stretch of at least two.
export function stretches(low, high) {
  const lists = [[]];
  low.forEach((value, i) => {
    if (value !== null && high[i] !== null) lists.at(-1).push(i);
    else if (lists.at(-1).length) lists.push([]);
  });
  return lists.filter((list) => list.length > 1);
}
// A kind of chart. `frame(f)` draws; `tip`, `clicked`, `pointed` and `resized` are called where a kind has them.
export class Drawing {
  constructor(chart, el) {
    this.chart = chart;
    this.el = el;
  }

  repaint() { if (this.last) this.frame(this.last); }
}
const RATES = [[1e12, "Tbit/s"], [1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]];
export function rate(bps, digits = three) {
  if (bps === null || bps === undefined) return "–";
  for (const [size, unit] of RATES) if (bps >= size * 0.9995) return `${digits(bps / size)} ${unit}`;
  return `${bps.toFixed(0)} bit/s`;
}
export const shortRate = (bps) => rate(bps, (v) => +v.toPrecision(3));
