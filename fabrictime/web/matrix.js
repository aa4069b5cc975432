// Senders (rows) against receivers (columns) on canvas: one image of a pixel a cell, scaled without smoothing.
// frame() takes names, groups, levels (base64, a byte a cell, row by row), metric, low, high and chosen.
// Emits `ready`, `ack` (drawn, the next frame may come), and `pick` ({row, column}) for a click on a cell.
import { ink, ramp, text, delay, rate, row, heading } from "fabrictime-draw";
import { canvasComponent, placeTip } from "fabrictime-draw/canvas.js";

const TITLES = { rate: "rate", probes: "delay of probes", data: "delay of the data" };
const LEVELS = 254, MIN_LABEL = 11;

class Matrix {
  constructor(el) {
    this.el = el;
    this.canvas = el.querySelector("canvas");
    this.g = this.canvas.getContext("2d");
    this.tip = el.querySelector(".ft-map-tip");
    this.image = document.createElement("canvas");
    this.draws = [];
    this.hovered = null;
  }

  frame(f) {
    this.last = f;
    this.levels = Uint8Array.from(atob(f.levels), (c) => c.charCodeAt(0));
    this.side = f.names.length;
    this.colored = null;
    this.paint();
  }

  size() {
    const box = this.el.getBoundingClientRect();
    [this.width, this.height] = [Math.max(box.width, 50), Math.max(box.height, 50)];
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.paint();
  }

  color() { // the image depends on the frame and the colour scheme, not on the size or the mouse
    const colors = ramp().map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    const shades = Array.from({ length: LEVELS + 2 }, (_, level) => {
      const at = (Math.max(0, level - 1) / LEVELS) * (colors.length - 1), k = Math.min(colors.length - 2, Math.floor(at));
      return colors[k].map((v, i) => v + (colors[k + 1][i] - v) * (at - k));
    });
    this.image.width = this.image.height = this.side;
    const pixels = new ImageData(this.side, this.side);
    for (let i = 0; i < this.levels.length; i++) {
      const level = this.levels[i];
      if (!level) continue;
      const shade = shades[level];
      pixels.data.set([shade[0], shade[1], shade[2], 255], 4 * i);
    }
    this.image.getContext("2d").putImageData(pixels, 0, 0);
    this.colored = true;
  }

  layout() {
    const fit = (names) => {
      const longest = Math.min(20, Math.max(3, ...names.map((s) => s.length)));
      const left = 14 + longest * 6, top = 34 + longest * 4.2;
      const cell = Math.max(0.5, Math.min((this.width - left - longest * 4) / this.side, (this.height - top - 8) / this.side, 56));
      return { left, top, cell, span: cell * this.side };
    };
    const each = fit(this.last.names);
    return each.cell >= MIN_LABEL ? each : fit(this.last.groups);
  }

  paint() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.last || !this.side || !this.width) { this.g.clearRect(0, 0, this.canvas.width, this.canvas.height); return; }
      const begin = performance.now();
      if (!this.colored) this.color();
      this.draw();
      this.draws.push(performance.now() - begin);
      if (this.draws.length > 600) this.draws.shift();
    });
  }

  draw() {
    const g = this.g, c = ink(), { left, top, cell, span } = this.layout();
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    g.fillStyle = c.none;
    g.fillRect(left, top, span, span);
    g.imageSmoothingEnabled = false;
    g.drawImage(this.image, left, top, span, span);
    g.strokeStyle = c.line;
    g.lineWidth = 1;
    g.strokeRect(left - 0.5, top - 0.5, span + 1, span + 1);
    this.borders(g, c, left, top, cell, span);
    this.labels(g, c, left, top, cell);
    this.legend(g, c);
    const mark = (at, ink_, width) => { g.strokeStyle = ink_; g.lineWidth = width; g.strokeRect(left + at[1] * cell - 1, top + at[0] * cell - 1, Math.max(cell, 3) + 2, Math.max(cell, 3) + 2); };
    if (this.last.chosen.length) mark(this.last.chosen, c.lit, 2.5);
    if (this.hovered) {
      g.fillStyle = c.lit; g.globalAlpha = 0.16;
      g.fillRect(left, top + this.hovered[0] * cell, span, cell);
      g.fillRect(left + this.hovered[1] * cell, top, cell, span);
      g.globalAlpha = 1;
      mark(this.hovered, c.text, 1.5);
    }
  }

  borders(g, c, left, top, cell, span) { // between the hosts
    const { groups } = this.last;
    if (cell < 3 || new Set(groups).size === groups.length) return;
    g.globalAlpha = 0.7;
    g.beginPath();
    for (let k = 1; k < this.side; k++) {
      if (groups[k] === groups[k - 1]) continue;
      g.moveTo(left, top + k * cell); g.lineTo(left + span, top + k * cell);
      g.moveTo(left + k * cell, top); g.lineTo(left + k * cell, top + span);
    }
    g.stroke();
    g.globalAlpha = 1;
  }

  labels(g, c, left, top, cell) {
    const { names, groups } = this.last, each = cell >= MIN_LABEL;
    g.font = "10.5px system-ui, sans-serif";
    g.fillStyle = c.dim;
    g.textBaseline = "middle";
    let next = -Infinity;
    for (let k = 0; k < this.side; k++) {
      if (!each && k > 0 && groups[k] === groups[k - 1]) continue;
      const at = (k + 0.5) * cell, name = each ? names[k] : groups[k];
      if (at < next) continue;
      next = at + 12;
      const shown = name.length > 20 ? `${name.slice(0, 19)}…` : name;
      g.textAlign = "right";
      g.fillText(shown, left - 5, top + at);
      g.save();
      g.translate(left + at, top - 6);
      g.rotate(-Math.PI / 4);
      g.textAlign = "left";
      g.fillText(shown, 0, 0);
      g.restore();
    }
  }

  legend(g, c) {
    const { metric } = this.last, colors = ramp(), width = 90, y = 4;
    const shade = g.createLinearGradient(0, 0, width, 0);
    colors.forEach((tone, k) => shade.addColorStop(k / (colors.length - 1), tone));
    g.textAlign = "right"; g.textBaseline = "middle"; g.fillStyle = c.dim; g.font = "11px system-ui, sans-serif";
    const [from, to] = [this.value(1), this.value(LEVELS + 1)].map((v) => this.shown(v));
    const right = this.width - 4;
    g.fillText(to, right, y + 5);
    const at = right - g.measureText(to).width - 6 - width;
    g.save(); g.translate(at, y); g.fillStyle = shade; g.fillRect(0, 0, width, 9); g.restore();
    g.fillStyle = c.dim;
    g.fillText(from, at - 6, y + 5);
    const title = `${TITLES[metric]}; from row to column`;
    if (g.measureText(title).width < at - g.measureText(from).width - 20) { g.textAlign = "left"; g.fillText(title, 2, y + 5); }
  }

  value(level) { const { low, high } = this.last; return low * (high / low) ** ((level - 1) / LEVELS); }
  shown(v) { return this.last.metric === "rate" ? rate(v) : delay(v); }

  find(x, y) {
    if (!this.last || !this.side) return null;
    const { left, top, cell } = this.layout();
    const at = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    return at.every((k) => k >= 0 && k < this.side) ? at : null;
  }

  hover(x, y) {
    const hit = x === null ? null : this.find(x, y);
    if (String(hit) !== String(this.hovered)) { this.hovered = hit; this.paint(); }
    this.el.style.cursor = hit && this.levels[hit[0] * this.side + hit[1]] ? "pointer" : "default";
    if (!hit) { this.tip.style.display = "none"; return; }
    placeTip(this.tip, this.content(hit), x, y, this.width, this.height);
  }

  content([r, k]) {
    const { names, metric } = this.last, level = this.levels[r * this.side + k];
    return heading(`${text(names[r])} → ${text(names[k])}`) +
      row(TITLES[metric], level ? `about ${this.shown(this.value(level))}` : metric === "rate" ? "no flow" : "not known") + "</table>";
  }

  spot(r, k) { const { left, top, cell } = this.layout(); return [left + (k + 0.5) * cell, top + (r + 0.5) * cell]; } // for tests
}

function connect(el, drawer, at, pick) {
  el.addEventListener("pointermove", (e) => drawer.hover(...at(e)));
  el.addEventListener("pointerleave", () => drawer.hover(null));
  el.addEventListener("click", (e) => {
    const hit = drawer.find(...at(e));
    if (hit) pick({ row: hit[0], column: hit[1] });
  });
}

export default canvasComponent(
  `<div class="ft-map ft-matrix" role="img" :aria-label="label"><canvas></canvas><div class="ft-map-tip"></div></div>`,
  Matrix, connect, (drawer) => { drawer.colored = null; drawer.paint(); },
);
