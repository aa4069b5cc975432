// One live chart: heat (NIC by NIC), pair (a pair's paths over time), clocks (lines or spread); and of the
// clocks' own page fleet (all clocks' quantiles and some clocks' lines), strip, lanes and mesh.
// In: frames from the server by frame(); a heat frame holds only the cells that changed.
// Out: events `ack` (the frame is drawn: the server may send the next), `cell`, `pick` (a name) and `ready`.
import { echarts } from "nicegui-echart";
import {
  LOSS, STEPS, dark, ink, color, ramp, text, delay, short,
  percent, clockTime, below, above, tooltip, row, heading, timeAxis,
} from "fabrictime-draw";
import { Hour, Minute, Gantt } from "fabrictime-draw/fabric.js";
import { Trail } from "fabrictime-draw/actions.js";

// ---------------------------------------------------------------------------------------------- heat map

class Heat {
  constructor(chart, el) {
    this.chart = chart;
    this.el = el;
    this.cells = new Map();
    this.range = null;
    this.shrunk = 0;
  }

  frame(f) {
    if (f.full) {
      Object.assign(this, { rows: f.rows, cols: f.cols, names: f.names, metric: f.metric, way: f.way, aggregated: f.aggregated });
      this.cells = new Map();
      this.range = null;
    }
    for (const cell of f.cells) this.cells.set(cell[0], cell);
    for (const index of f.gone) this.cells.delete(index);
    const rescaled = this.scale();
    if (f.full) this.axes();
    else if (f.silent) this.silent = f.silent;
    this.draw(f.full || rescaled);
  }

  scale() {
    let low = Infinity, high = 0;
    for (const c of this.cells.values())
      if (c[1] !== null && c[1] > 0) { low = Math.min(low, c[1]); high = Math.max(high, c[1]); }
    let next = this.metric === "loss" ? [1e-4, 1] : high ? [below(low), above(high)] : [1e3, 1e5];
    if (next[0] === next[1]) next[1] = above(next[0] * 1.5);
    const was = this.range;
    if (was && (was[0] < next[0] || was[1] > next[1])) { // grow at once, shrink after a while
      const grown = [Math.min(was[0], next[0]), Math.max(was[1], next[1])];
      if (grown[0] === was[0] && grown[1] === was[1]) {
        if (++this.shrunk < 20) return false;
      } else next = grown;
    }
    this.shrunk = 0;
    this.range = next;
    return !was || was[0] !== next[0] || was[1] !== next[1];
  }

  axes() {
    const c = ink();
    const rows = this.rows, cols = this.cols;
    const axis = (labels, horizontal) => {
      const many = labels.length > 40;
      const start = (i) => i === 0 || labels[i].group !== labels[i - 1].group;
      const groups = labels.filter((_, i) => start(i)).length;
      const every = Math.max(1, Math.ceil(groups / 40));
      let n = -1;
      const shown = labels.map((_, i) => (start(i) ? ++n % every === 0 : false));
      return {
        type: "category", data: labels.map((l) => l.text), inverse: !horizontal,
        position: horizontal ? "top" : "left",
        axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false },
        splitLine: { show: false },
        axisLabel: {
          color: c.dim, fontSize: 11, rotate: horizontal ? 55 : 0, hideOverlap: true, margin: 6,
          interval: many && groups > 1 ? (i) => shown[i] : many ? "auto" : 0,
          formatter: (value, i) => {
            const l = labels[i];
            if (!l) return "";
            const name = many && groups > 1 && l.group ? l.group : value;
            return l.silent ? `{silent|${name}}` : name;
          },
          rich: { silent: { color: LOSS, fontSize: 11 } },
        },
      };
    };
    const shown = (labels) => labels.length > 40 && labels[0]?.group;
    const longest = (labels) => Math.max(3, ...labels.map((l) => (shown(labels) ? l.group : l.text).length));
    const borders = (labels, kind) => labels.flatMap((l, i) =>
      i > 0 && l.group !== labels[i - 1].group ? [kind === 3 ? [i, 0, 3] : [0, i, 4]] : []);
    const lines = [...borders(cols, 3), ...borders(rows, 4)];
    this.borders = lines.length < rows.length + cols.length - 2 ? lines : [];
    this.chart.setOption({
      animation: false,
      tooltip: { ...tooltip(c), formatter: (p) => this.tip(p) },
      grid: {
        left: Math.min(150, 16 + longest(rows) * 6.4), right: 10, bottom: 10,
        top: Math.min(120, 18 + longest(cols) * 5.4),
        show: true, backgroundColor: c.none, borderColor: c.line,
      },
      xAxis: axis(cols, true),
      yAxis: axis(rows, false),
    }, { replaceMerge: ["xAxis", "yAxis"] });
  }

  draw(rescaled) {
    const width = this.cols.length;
    const loss = this.metric === "loss";
    const floor = Math.log10(this.range[0]);
    const heat = [], marks = [];
    for (const cell of this.cells.values()) {
      const x = cell[0] % width, y = (cell[0] / width) | 0;
      const v = cell[1];
      if (v === null) marks.push([x, y, 2]);
      else heat.push([x, y, v > 0 ? Math.log10(v) : floor]);
      if (!loss && cell[6] > 0) marks.push([x, y, 1]);
    }
    const c = ink();
    const option = {
      series: [
        { id: "heat", type: "heatmap", data: heat, progressive: 0, animation: false,
          itemStyle: { borderWidth: width > 60 ? 0 : 1, borderColor: c.none },
          emphasis: { itemStyle: { borderColor: c.text, borderWidth: 2 } } },
        { id: "marks", type: "custom", data: marks, renderItem: mark, silent: true, animation: false, z: 5,
          progressive: 0, encode: { x: 0, y: 1 } },
        ...(rescaled ? [{ id: "groups", type: "custom", data: this.borders, renderItem: border, silent: true,
          animation: false, z: 4, progressive: 0, encode: { x: 0, y: 1 } }] : []),
      ],
    };
    if (rescaled) {
      option.visualMap = {
        show: false, type: "continuous", seriesIndex: 0, dimension: 2, hoverLink: false,
        min: floor, max: Math.log10(this.range[1]), inRange: { color: ramp() },
      };
      this.legend();
    }
    this.chart.setOption(option);
  }

  legend() {
    const host = this.el.querySelector(".ft-legend");
    const [low, high] = this.range, span = Math.log10(high / low);
    const ticks = [];
    for (let d = 10 ** Math.floor(Math.log10(low)); d <= high * 1.001; d *= 10)
      for (const s of STEPS)
        if (d * s >= low * 0.999 && d * s <= high * 1.001) ticks.push(d * s);
    const kept = ticks.length > 7 ? ticks.filter((t) => Math.abs(Math.log10(t) % 1) < 1e-6 || t === ticks.at(-1)) : ticks;
    const label = this.metric === "loss" ? percent : short;
    host.innerHTML = `<div class="ft-ramp" style="background:linear-gradient(90deg,${ramp().join(",")})"></div>` +
      kept.map((t) => `<span style="left:${(100 * Math.log10(t / low)) / span}%">${label(t)}</span>`).join("");
  }

  tip(p) {
    if (p.seriesId !== "heat" || !p.data) return "";
    const [x, y] = p.data;
    const cell = this.cells.get(y * this.cols.length + x);
    if (!cell) return "";
    const [, , p50, p99, min, count, lost, bound, rtt, pairs, a, b] = cell;
    const arrow = this.way === "forward" ? "→" : "←";
    let head = `${text(this.rows[y].text)} ${arrow} ${text(this.cols[x].text)}`;
    if (this.aggregated)
      head += `<div style="opacity:.7;font-weight:400">worst of ${pairs} pairs: ${text(this.names[a])} ${arrow} ${text(this.names[b])}</div>`;
    return `<div style="font-weight:600;margin-bottom:4px">${head}</div><table style="border-spacing:0">` +
      row("p50", delay(p50)) + row("p99", delay(p99)) + row("min", delay(min)) +
      row("bound", bound === null ? "clocks not synced" : `± ${delay(bound)}`) + row("least round trip", delay(rtt)) +
      row("lost", `${lost} of ${count + lost} (${percent(lost / Math.max(count + lost, 1))})`) + "</table>";
  }

  clicked(p) {
    return p.seriesId === "heat" ? { x: p.data[0], y: p.data[1] } : null;
  }

  repaint() {
    if (this.rows) { this.axes(); this.draw(true); }
  }
}

function border(params, api) {
  const [cx, cy] = api.coord([api.value(0), api.value(1)]);
  const [w, h] = api.size([1, 1]);
  const { x, y, width, height } = params.coordSys;
  const shape = api.value(2) === 3
    ? { x1: cx - w / 2, x2: cx - w / 2, y1: y, y2: y + height }
    : { x1: x, x2: x + width, y1: cy - h / 2, y2: cy - h / 2 };
  return { type: "line", shape, style: { stroke: ink().grey, lineWidth: 1, opacity: 0.6 } };
}

function mark(params, api) {
  const [cx, cy] = api.coord([api.value(0), api.value(1)]);
  const [w, h] = api.size([1, 1]);
  if (api.value(2) === 2)
    return { type: "rect", shape: { x: cx - w / 2 + 1, y: cy - h / 2 + 1, width: Math.max(w - 2, 1), height: Math.max(h - 2, 1) },
      style: { fill: "none", stroke: ink().grey, lineWidth: 1, lineDash: [2, 2] } };
  const s = Math.max(2, Math.min(w, h) * 0.34);
  const right = cx + w / 2 - 0.5, top = cy - h / 2 + 0.5;
  return { type: "polygon", shape: { points: [[right - s, top], [right, top], [right, top + s]] },
    style: { fill: LOSS, stroke: dark() ? "#000" : "#fff", lineWidth: s > 5 ? 0.75 : 0 } };
}

// ------------------------------------------------------------------------------------------ lines and bands

function band(id, index, t, low, high, fill, opacity) {
  return {
    id, type: "custom", xAxisIndex: index, yAxisIndex: index, silent: true, animation: false, clip: true, z: 1,
    data: [[t[0] ?? 0, 1]], encode: { x: -1, y: -1 }, tooltip: { show: false },
    renderItem: (params, api) => {
      const up = [], down = [];
      for (let i = 0; i < t.length; i++) {
        if (low[i] === null || high[i] === null) continue;
        up.push(api.coord([t[i], high[i]]));
        down.push(api.coord([t[i], low[i]]));
      }
      if (up.length < 2) return null;
      return { type: "polygon", shape: { points: up.concat(down.reverse()) }, style: { fill, opacity } };
    },
  };
}
class Pair {
  constructor(chart, el) {
    this.chart = chart;
    this.el = el;
    this.shape = null;
    this.off = {};
    chart.on("legendselectchanged", (e) => { this.off = e.selected; });
  }

  frame(f) {
    this.last = f;
    const c = ink();
    const shape = f.id + f.paths.join();
    const replace = shape !== this.shape;
    this.shape = shape;
    const { t } = f;
    const ways = ["forward", "reverse"];
    let low = Infinity, high = 0;
    for (const way of ways)
      for (const path of f.paths)
        for (const stat of ["min", "p50", "p99"])
          for (const v of f.series[path][way][stat])
            if (v !== null && v > 0) { low = Math.min(low, v); high = Math.max(high, v); }
    const empty = !high;
    if (empty) { low = 1e3; high = 1e5; }
    const range = [Math.max(below(low), 1), above(high)];
    if (range[1] <= range[0]) range[1] = above(range[0] * 1.5);
    const series = [];
    const grids = [
      { left: 62, right: 16, top: 40, height: "30%" },
      { left: 62, right: 16, top: "49%", height: "28%" },
      { left: 62, right: 16, top: "86%", bottom: 20 },
    ];
    ways.forEach((way, g) => {
      const mid = f.median[way];
      series.push(band(`bound-${way}`, g, t,
        mid.map((v, i) => (v === null || f.bound[i] === null ? null : Math.max(v - f.bound[i], range[0]))),
        mid.map((v, i) => (v === null || f.bound[i] === null ? null : Math.min(v + f.bound[i], range[1]))),
        c.grey, 0.35));
      f.paths.forEach((path, k) => {
                for (const [stat, style] of [["p99", { width: 1, type: [5, 3], opacity: 0.75 }],
          ["p50", { width: 2 }], ["min", { width: 1, type: [1, 3], opacity: 0.8 }]])
          series.push({
            id: `${way}-${path}-${stat}`, name: `path ${path}`, type: "line", xAxisIndex: g, yAxisIndex: g,
            data: t.map((x, i) => [x, f.series[path][way][stat][i]]), showSymbol: false, connectNulls: false,
            animation: false, lineStyle: { color: color(k), ...style }, itemStyle: { color: color(k) }, emphasis: { disabled: true },
            z: stat === "p50" ? 4 : 3, stat,
          });
      });
    });
    f.paths.forEach((path, k) => series.push({
      id: `lost-${path}`, name: `path ${path}`, type: "bar", stack: "lost", xAxisIndex: 2, yAxisIndex: 2,
      data: t.map((x, i) => [x, f.series[path].lost[i]]), itemStyle: { color: color(k) },
      animation: false, barMaxWidth: 8, barMinWidth: 1.5,
    }));
    const worst = Math.max(1, ...t.map((_, i) => f.paths.reduce((n, p) => n + (f.series[p].lost[i] || 0), 0)));
    const y = (g, name) => ({
      type: "log", gridIndex: g, min: range[0], max: range[1], name, nameLocation: "end", nameGap: 12,
      nameTextStyle: { color: c.dim, fontSize: 11, align: "left", padding: [0, 0, 0, -56] },
      axisLabel: { color: c.dim, fontSize: 11, formatter: short, hideOverlap: true }, axisLine: { show: false },
      splitLine: { lineStyle: { color: c.line } },
    });
    this.chart.setOption({
      animation: false, grid: grids,
      legend: { type: "scroll", top: 0, right: 8, left: 210, align: "auto", icon: "roundRect", itemWidth: 14, itemHeight: 4,
        textStyle: { color: c.text, fontSize: 12 }, data: f.paths.map((p) => `path ${p}`), selected: this.off },
      tooltip: { ...tooltip(c), trigger: "axis", formatter: (ps) => this.tip(ps), axisPointer: { type: "line", lineStyle: { color: c.dim } } },
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      xAxis: [timeAxis(c, 0, t, false), timeAxis(c, 1, t, false), timeAxis(c, 2, t, true)],
      yAxis: [y(0, f.names[0]), y(1, f.names[1]), {
        type: "value", gridIndex: 2, min: 0, max: above(worst), interval: above(worst), name: "lost probes", nameGap: 9,
        nameTextStyle: { color: c.dim, fontSize: 11, align: "left", padding: [0, 0, 0, -56] },
        axisLabel: { color: c.dim, fontSize: 11 }, splitLine: { lineStyle: { color: c.line } },
      }],
      series,
    }, replace ? { replaceMerge: ["series"] } : {});
  }

  tip(ps) {
    const f = this.last;
    const i = f.t.indexOf(ps[0]?.axisValue);
    if (i < 0) return "";
    const cell = (v) => `<td style="text-align:right;padding-left:12px;font-variant-numeric:tabular-nums">${v}</td>`;
    let html = `<div style="font-weight:600;margin-bottom:4px">${clockTime(f.t[i])} UTC` +
      `<span style="opacity:.7;font-weight:400"> bound ± ${delay(f.bound[i])}</span></div><table style="border-spacing:0">` +
      `<tr style="opacity:.7"><td></td>${["out min", "p50", "p99", "back min", "p50", "p99", "lost"].map(cell).join("")}</tr>`;
    f.paths.forEach((path, k) => {
      const s = f.series[path];
      html += `<tr><td><span style="color:${color(k)}">■</span> ${path}</td>` +
        ["forward", "reverse"].flatMap((w) => ["min", "p50", "p99"].map((st) => cell(delay(s[w][st][i])))).join("") +
        cell(s.lost[i] ?? "–") + "</tr>";
    });
    return html + "</table>";
  }

  repaint() { if (this.last) this.frame(this.last); }
}

class Clocks {
  constructor(chart, el) {
    this.chart = chart;
    this.el = el;
    this.shape = null;
  }

  frame(f) {
    this.last = f;
    const c = ink();
    const shape = [f.kind, f.view, ...f.lines.map((l) => l.name)].join();
    const replace = shape !== this.shape;
    this.shape = shape;
    const log = f.view === "bound";
    const series = f.lines.map((line, k) => ({
      id: line.name, name: line.name, type: "line", data: f.t.map((x, i) => [x, line.v[i]]), showSymbol: false,
      animation: false, connectNulls: false, emphasis: { disabled: true }, z: line.bold ? 5 : 3,
      lineStyle: { color: color(k), width: line.bold ? 2.5 : 1.2, opacity: line.bold ? 1 : 0.75,
        type: line.dashed ? [5, 3] : "solid" },
      itemStyle: { color: color(k) },
    }));
    f.bands.forEach((b) => series.push(band(`band-${b.name}`, 0, f.t, b.low, b.high, color(b.color), 0.18)));
    let [low, high] = [Infinity, -Infinity];
    for (const line of f.lines) for (const v of line.v) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
    for (const b of f.bands) { // a bound far wider than usual, as at a start, leaves the scale alone
      const widths = b.low.flatMap((v, i) => (v === null ? [] : [b.high[i] - v])).sort((x, y) => x - y);
      const usual = 3 * (widths[widths.length >> 1] ?? 0);
      b.low.forEach((v, i) => {
        if (v !== null && b.high[i] - v <= usual) { low = Math.min(low, v); high = Math.max(high, b.high[i]); }
      });
    }
    const axis = { type: log ? "log" : "value" };
    if (log && high > 0) { axis.min = below(Math.max(low, 1)); axis.max = above(Math.max(high, 2)); if (axis.min === axis.max) axis.max = above(axis.min * 1.5); }
    else if (Number.isFinite(low)) { const pad = Math.max((high - low) * 0.08, 1); axis.min = low - pad; axis.max = high + pad; }
    this.chart.setOption({
      animation: false, grid: { left: 58, right: 14, top: f.kind === "spread" ? 26 : 12, bottom: 22 },
      legend: { show: f.kind === "spread", top: 0, right: 8, icon: "roundRect", itemWidth: 12, itemHeight: 4, itemGap: 8,
        textStyle: { color: c.text, fontSize: 11 }, data: f.lines.map((l) => l.name) },
      tooltip: { ...tooltip(c), trigger: "axis", order: "valueDesc", axisPointer: { type: "line", lineStyle: { color: c.dim } },
        formatter: (ps) => this.tip(ps) },
      xAxis: timeAxis(c, 0, f.t, true),
      yAxis: { ...axis, axisLabel: { color: c.dim, fontSize: 11, formatter: short, hideOverlap: true, showMinLabel: log, showMaxLabel: log },
        splitLine: { lineStyle: { color: c.line } }, splitNumber: 4 },
      series,
    }, replace ? { replaceMerge: ["series", "yAxis"] } : {});
  }

  tip(ps) {
    const lines = ps.filter((p) => p.seriesType === "line" && p.value[1] !== null)
      .sort((a, b) => Math.abs(b.value[1]) - Math.abs(a.value[1])).slice(0, 12);
    if (!lines.length) return "";
    return `<div style="font-weight:600;margin-bottom:4px">${clockTime(lines[0].value[0])} UTC</div><table style="border-spacing:0">` +
      lines.map((p) => row(`<span style="color:${p.color}">■</span> ${text(p.seriesName)}`, delay(p.value[1]))).join("") + "</table>";
  }

  repaint() { if (this.last) this.frame(this.last); }
}

// ------------------------------------------------------------------------------------------ the clocks' own page

const STATES = ["SYNCED", "HOLDOVER", "UNSYNCED"];
const stateColor = (k) => (dark() ? ["#2fbf8f", "#f0a830", "#ff6b4a"] : ["#00875f", "#b86e00", "#c8361d"])[k];
const NIC_DOTS = 40;
const NOT_SAID = "#8b94a5";
const EVENTS = { NEW: "circle", STEP: "triangle", RATE_CHANGE: "diamond", FALSETICKER: "rect", MERGED: "roundRect" };
const eventColor = (kind) => (kind === "FALSETICKER" || kind === "STEP" ? LOSS : ink().text);

class Fleet {
  constructor(chart) {
    this.chart = chart;
    this.shape = null;
  }

  frame(f) {
    this.last = f;
    const c = ink();
    const shape = [f.id, ...f.lines.map((l) => l.name), ...f.bands.map((b) => b.name)].join();
    const replace = shape !== this.shape;
    this.shape = shape;
    const tone = (k) => (k < 0 ? c.grey : color(k));
    const series = f.lines.map((line) => ({
      id: `${line.color < 0 ? "fleet" : "clock"} ${line.name}`, name: line.name, type: "line",
      data: f.t.map((x, i) => [x, line.v[i]]), showSymbol: line.v.filter((v) => v !== null).length < 2,
      animation: false, connectNulls: false, emphasis: { disabled: true }, z: line.color < 0 ? 3 : 5,
      lineStyle: { color: tone(line.color), width: line.color < 0 ? 1.3 : 1.9, type: line.style },
      itemStyle: { color: tone(line.color) },
    }));
    f.bands.forEach((b) => series.push(band(`band ${b.name}`, 0, f.t, b.low, b.high, tone(b.color), b.opacity)));
    let [low, high] = [Infinity, -Infinity];
    const see = (v) => { if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); } };
    f.lines.forEach((l) => l.v.forEach(see));
    for (const b of f.bands) { // a band far wider than usual, as at a start, leaves the scale alone
      const widths = b.low.flatMap((v, i) => (v === null || b.high[i] === null ? [] : [b.high[i] - v])).sort((x, y) => x - y);
      const usual = 3 * (widths[widths.length >> 1] ?? 0);
      b.low.forEach((v, i) => { if (v !== null && b.high[i] - v <= usual) { see(v); see(b.high[i]); } });
    }
    const axis = { type: f.log ? "log" : "value", min: f.log ? 1 : -100, max: 100 };
    if (f.log && high > 0) {
      [axis.min, axis.max] = [below(Math.max(low, 0.1)), above(Math.max(high, 0.2))];
      if (axis.min === axis.max) axis.max = above(axis.min * 1.5);
    } else if (Number.isFinite(low)) {
      const pad = Math.max((high - low) * 0.08, 1);
      [axis.min, axis.max] = [low - pad, high + pad];
    }
    series.push({
      id: "marks", type: "scatter", z: 8, animation: false, tooltip: { show: false }, silent: true,
      data: f.marks.map((m) => ({ value: [m.t, axis.min], symbol: EVENTS[m.kind] ?? "pin", itemStyle: { color: eventColor(m.kind) } })),
      symbolSize: 9, symbolOffset: [0, -4],
      markLine: { silent: true, symbol: "none", animation: false, label: { show: false },
        lineStyle: { color: c.dim, width: 1, type: [2, 4] }, data: f.marks.map((m) => ({ xAxis: m.t })) },
    });
    this.chart.setOption({
      animation: false, grid: { left: 60, right: 14, top: 28, bottom: 22 },
      legend: { type: "scroll", top: 0, right: 8, left: 60, icon: "roundRect", itemWidth: 12, itemHeight: 4, itemGap: 10,
        textStyle: { color: c.text, fontSize: 11 }, data: f.lines.map((l) => l.name) },
      tooltip: { ...tooltip(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.dim } },
        formatter: (ps) => this.tip(ps) },
      xAxis: timeAxis(c, 0, f.t, true),
      yAxis: { ...axis, axisLabel: { color: c.dim, fontSize: 11, formatter: short, hideOverlap: true, showMinLabel: f.log, showMaxLabel: f.log },
        splitLine: { lineStyle: { color: c.line } }, splitNumber: 4 },
      series,
    }, replace ? { replaceMerge: ["series", "yAxis"] } : {});
  }

  tip(ps) {
    const f = this.last, i = f.t.indexOf(ps[0]?.axisValue);
    if (i < 0) return "";
    const rows = f.lines.filter((l) => l.v[i] !== null).map((l) => {
      const b = f.bands.find((each) => each.name === `± bound of ${l.name}`);
      const wide = b && b.low[i] !== null ? ` ± ${delay((b.high[i] - b.low[i]) / 2)}` : "";
      const who = f.worst && l.name === f.worst.line && f.worst.names[i] ? `: ${text(f.worst.names[i])}` : "";
      const tone = l.color < 0 ? ink().grey : color(l.color);
      return row(`<span style="color:${tone}">■</span> ${text(l.name)}${who}`, delay(l.v[i]) + wide);
    });
    const near = f.marks.filter((m) => Math.abs(m.t - f.t[i]) <= (f.t[1] - f.t[0]));
    if (!rows.length && !near.length) return "";
    return heading(`${clockTime(f.t[i])} UTC`) + rows.join("") +
      near.slice(0, 6).map((m) => row(text(m.clock), text(m.text))).join("") + "</table>";
  }

  repaint() { if (this.last) this.frame(this.last); }
}

class Strip {
  constructor(chart) { this.chart = chart; }

  frame(f) {
    this.last = f;
    const c = ink();
    const known = f.points.flatMap((p) => (p[1] === null ? [] : [p[1]]));
    const low = known.length ? below(Math.max(Math.min(...known), 0.1)) : 1;
    const high = known.length ? Math.max(above(Math.max(...known, 0.2)), above(low * 1.5)) : 1000;
    const point = (p) => ({
      value: [p[0], p[1] ?? high, p[3]], symbol: p[1] === null ? "path://M0,0L4,4M4,0L0,4" : p[2] === 0 ? "circle" : "diamond",
      symbolSize: p[6] ? 11 : f.points.length > 150 ? 5 : 7,
      itemStyle: { color: stateColor(p[2]), borderColor: p[6] ? c.text : stateColor(p[2]), borderWidth: p[6] ? 2 : p[1] === null ? 2 : 0 },
    });
    this.chart.setOption({
      animation: false, grid: { left: 60, right: 14, top: 10, bottom: 34 },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: { type: "value", min: f.clocks > 1 ? 1 : 0, max: Math.max(f.clocks, 2), minInterval: 1, name: "clocks, the widest bound first", nameLocation: "middle", nameGap: 20,
        nameTextStyle: { color: c.dim, fontSize: 11 }, axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false },
        splitLine: { show: false }, axisLabel: { color: c.dim, fontSize: 11, hideOverlap: true } },
      yAxis: { type: "log", min: low, max: high, axisLabel: { color: c.dim, fontSize: 11, formatter: short, hideOverlap: true },
        splitLine: { lineStyle: { color: c.line } } },
      series: [{ id: "clocks", type: "scatter", data: f.points.map(point), animation: false, clip: false, cursor: "pointer" }],
    });
  }

  tip(p) {
    const found = this.last.points[p.dataIndex];
    if (!found) return "";
    const [rank, bound, state, name, offset, residual] = found;
    return heading(text(name)) + row("state", STATES[state]) + row("bound", bound === null ? "none: not to be used" : `± ${delay(bound)}`) +
      row("offset", delay(offset)) + row("residual", delay(residual)) + row("rank", `${rank} of ${this.last.clocks}`) + "</table>";
  }

  clicked(p) {
    const found = this.last?.points[p.dataIndex];
    return found ? { name: found[3] } : null;
  }

  repaint() { if (this.last) this.frame(this.last); }
}

class Lanes {
  constructor(chart) { this.chart = chart; }

  frame(f) {
    this.last = f;
    const c = ink();
    const longest = Math.max(4, ...f.lanes.map((name) => name.length));
    this.chart.setOption({
      animation: false, grid: { left: Math.min(150, 14 + longest * 6.2), right: 14, top: 8, bottom: 22 },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: { ...timeAxis(c, 0, f.t, true) },
      yAxis: { type: "category", data: f.lanes, inverse: true, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
        axisLabel: { color: c.dim, fontSize: 11, interval: 0, hideOverlap: true, width: 130, overflow: "truncate" } },
      series: [
        { id: "states", type: "custom", data: f.segments.map((s) => [s[1], s[0], s[2], s[3]]), encode: { x: [0, 2], y: 1 }, clip: true,
          animation: false, progressive: 0, renderItem: (params, api) => {
            const [x0, y] = api.coord([api.value(0), api.value(1)]), [x1] = api.coord([api.value(2), api.value(1)]);
            const h = Math.min(14, api.size([0, 1])[1] * 0.6);
            return { type: "rect", shape: { x: x0, y: y - h / 2, width: Math.max(x1 - x0, 1.5), height: h },
              style: { fill: stateColor(api.value(3)), opacity: api.value(3) === 0 ? 0.45 : 0.95 } };
          } },
        { id: "events", type: "scatter", animation: false, z: 5, symbolSize: 11,
          data: f.marks.map((m) => ({ value: [m[1], m[0]], symbol: EVENTS[m[2]] ?? "pin",
            itemStyle: { color: eventColor(m[2]), borderColor: c.card, borderWidth: 1.5 } })) },
      ],
    });
  }

  tip(p) {
    const f = this.last;
    if (p.seriesId === "events") {
      const m = f.marks[p.dataIndex];
      return m ? heading(text(f.lanes[m[0]])) + row(`${clockTime(m[1])} UTC`, text(m[3])) + "</table>" : "";
    }
    const s = f.segments[p.dataIndex];
    if (!s) return "";
    return heading(text(f.lanes[s[0]])) + row(STATES[s[3]], `${clockTime(s[1])} to ${clockTime(s[2])} UTC`) + "</table>";
  }

  clicked(p) {
    const f = this.last, lane = p.seriesId === "events" ? f.marks[p.dataIndex]?.[0] : f.segments[p.dataIndex]?.[0];
    return lane === undefined ? null : { name: f.lanes[lane] };
  }

  repaint() { if (this.last) this.frame(this.last); }
}

class Mesh {
  constructor(chart) { this.chart = chart; }

  frame(f) {
    this.last = f;
    const c = ink();
    const [width, height] = [this.chart.getWidth(), this.chart.getHeight()];
    const names = f.labels ? f.nodes.map((n) => n[0]) : f.groups.map((g) => g[0]);
    const room = Math.min(110, 12 + 6 * Math.max(3, ...names.map((n) => n.length)));
    const size = Math.max(60, Math.min(width - 2 * room, height - 44));
    const at = (k) => [f.nodes[k][1], f.nodes[k][2]];
    const dot = f.nodes.length > 100 ? 6 : f.nodes.length > NIC_DOTS ? 8 : 11;
    const around = (x, y) => (x > 0.3 ? "right" : x < -0.3 ? "left" : y > 0 ? "bottom" : "top");
    const tone = (state) => (state === null ? NOT_SAID : stateColor(STATES.indexOf(state)));
    const axis = (inverse) => ({ type: "value", min: -1.06, max: 1.06, show: false, inverse });
    this.chart.setOption({
      animation: false, grid: { left: (width - size) / 2, top: (height - size) / 2, width: size, height: size },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: axis(false), yAxis: axis(true),
      series: [
        { id: "pairs", type: "lines", coordinateSystem: "cartesian2d", z: 2, animation: false, progressive: 0,
          data: f.edges.map((e) => ({ coords: [at(e[0]), at(e[1])] })),
          lineStyle: { color: c.dim, width: 1, opacity: f.edges.length > 400 ? 0.14 : 0.3, curveness: 0.12 },
          emphasis: { lineStyle: { color: c.text, width: 2, opacity: 1 } } },
        { id: "suspects", type: "lines", coordinateSystem: "cartesian2d", z: 4, animation: false,
          symbol: ["none", "arrow"], symbolSize: 9,
          data: f.suspects.map((e) => ({ coords: [at(e[0]), at(e[1])] })),
          lineStyle: { color: LOSS, width: 2.4, opacity: 0.95, curveness: 0.12 }, emphasis: { lineStyle: { width: 4 } } },
        { id: "nics", type: "scatter", z: 6, animation: false, clip: false, symbolSize: dot, cursor: "pointer", labelLayout: { hideOverlap: true },
          data: f.nodes.map((n) => ({ value: [n[1], n[2]], itemStyle: { color: tone(n[4]), borderColor: n[7] ? LOSS : c.card, borderWidth: n[7] ? 2 : 1 },
            label: { show: f.labels, formatter: () => n[0], position: around(n[1], n[2]), color: n[7] ? LOSS : c.dim, fontSize: 11 } })) },
        { id: "groups", type: "scatter", z: 5, animation: false, clip: false, silent: true, symbolSize: 1, itemStyle: { color: "transparent" },
          labelLayout: { hideOverlap: true },
          data: f.labels ? [] : f.groups.map((g) => ({ value: [g[1] * 1.06, g[2] * 1.06],
            label: { show: true, formatter: () => g[0], position: around(g[1], g[2]), color: c.dim, fontSize: 11 } })) },
      ],
    });
  }

  tip(p) {
    const f = this.last, name = (k) => text(f.nodes[k][0]);
    if (p.seriesId === "nics") {
      const [nic, , , clock, state, bound, pairs, suspects] = f.nodes[p.dataIndex] ?? [];
      if (nic === undefined) return "";
      return heading(text(nic)) + row("clock", text(clock)) + row("state", state ?? "in no window") +
        row("bound", bound === null ? "none" : `± ${delay(bound)}`) + row("pairs, both ways", pairs) +
        (suspects ? row("suspect pairs", suspects) : "") + "</table>";
    }
    if (p.seriesId === "suspects") {
      const e = f.suspects[p.dataIndex];
      if (!e) return "";
      const [slow, quick] = e[2] > 0 ? ["out", "back"] : ["back", "out"];
      return heading(`${name(e[0])} → ${name(e[1])}: suspect`) + row("asymmetry", `${delay(e[2])} ± ${delay(e[3])}`) +
        row("so its path", `${slow} is ${delay(2 * Math.abs(e[2]))} slower than ${quick}`) +
        row("weight left", percent(e[4])) + "</table>";
    }
    const e = f.edges[p.dataIndex];
    if (!e) return "";
    return heading(`${name(e[0])} ${e[2] > 1 ? "↔" : "–"} ${name(e[1])}`) + row("fit's sigma", delay(e[3])) +
      row("least round trip", delay(e[4])) + row("samples accepted", e[5]) + "</table>";
  }

  clicked(p) {
    return p.seriesId === "nics" && this.last ? { name: this.last.nodes[p.dataIndex][3] } : null;
  }

  repaint() { if (this.last) this.frame(this.last); }
  resized() { this.repaint(); }
}



// a picture waits at most so long for the browser to have painted all words
const WORDS_FIRST_MS = 300;
const whenIdle = window.requestIdleCallback ?? ((draw) => requestAnimationFrame(() => setTimeout(draw)));

const KINDS = { heat: Heat, pair: Pair, clocks: Clocks, fleet: Fleet, strip: Strip, lanes: Lanes, mesh: Mesh,
  hour: Hour, minute: Minute, gantt: Gantt, trail: Trail };

export default {
  template: `<div class="ft-chart"><div class="ft-legend" v-show="kind === 'heat'"></div><div class="ft-canvas"></div></div>`,
  props: { kind: String },
  async mounted() {
    await new Promise((resolve) => setTimeout(resolve, 0));
    const canvas = this.$el.querySelector(".ft-canvas");
    this.chart = echarts.init(canvas, null, { renderer: "canvas", useUTC: true });
    this.drawer = new KINDS[this.kind](this.chart, this.$el);
    this.chart.on("click", (p) => {
      const found = this.drawer.clicked?.(p);
      if (found) this.$emit(found.name === undefined ? "cell" : "pick", found);
    });
    this.watch = new ResizeObserver(() => {
      this.chart.resize();
      this.drawer.resized?.();
    });
    this.watch.observe(canvas);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.drawer.repaint();
    this.scheme.addEventListener("change", this.repaint);
    this.frames = 0;
    this.$el.ft = { chart: this.chart, drawer: this.drawer };
    this.$emit("ready");
  },
  beforeUnmount() {
    this.scheme?.removeEventListener("change", this.repaint);
    this.watch?.disconnect();
    this.chart?.dispose();
    this.drawer = null;
  },
  methods: {
    frame(seq, f) {
      if (!this.drawer) return; // not mounted yet: the server sends all again at `ready`
      // words first: what came with this frame is painted before the picture, which takes far longer
      whenIdle(() => {
        if (!this.drawer) return;
        this.drawer.frame(f);
        this.frames++;
        this.$el.dataset.frames = this.frames;
        requestAnimationFrame(() => this.$emit("ack", seq));
      }, { timeout: WORDS_FIRST_MS });
    },
  },
};
