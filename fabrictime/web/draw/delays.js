// Charts of the Delays tab: heat map, paths of one pair over time, clocks over time.
// A heat frame has only the cells that changed.
import {
  Drawing, LOSS, STEPS, dark, ink, color, ramp, text, delay, short,
  percent, clockTime, below, above, tooltip, row, timeAxis, band,
} from "./index.js";

export class Heat extends Drawing {
  cells = new Map();
  range = null;
  shrunk = 0;

  frame(f) {
    if (f.full) {
      Object.assign(this, { rows: f.rows, cols: f.cols, names: f.names, metric: f.metric, direction: f.direction, aggregated: f.aggregated });
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
    const before = this.range;
    if (before && (before[0] < next[0] || before[1] > next[1])) { // grow at once, shrink after a while
      const grown = [Math.min(before[0], next[0]), Math.max(before[1], next[1])];
      if (grown[0] === before[0] && grown[1] === before[1]) {
        if (++this.shrunk < 20) return false;
      } else next = grown;
    }
    this.shrunk = 0;
    this.range = next;
    return !before || before[0] !== next[0] || before[1] !== next[1];
  }

  axes() {
    const c = ink();
    const rows = this.rows, cols = this.cols;
    const axis = (labels, horizontal) => {
      const many = labels.length > 40;
      const start = (i) => i === 0 || labels[i].group !== labels[i - 1].group;
      const groups = labels.filter((_, i) => start(i)).length;
      const every = Math.max(1, Math.ceil(groups / 40));
      const nth = (all, flat) => Math.max(1, Math.ceil((all.length * 15) / Math.max(60, (flat ? this.chart.getWidth() : this.chart.getHeight()) - 110)));
      let n = -1;
      const shown = labels.map((_, i) => (start(i) ? ++n % every === 0 : false));
      return {
        type: "category", data: labels.map((l) => l.text), inverse: !horizontal,
        position: horizontal ? "top" : "left",
        axisLine: { lineStyle: { color: c.line } }, axisTick: { show: false },
        splitLine: { show: false },
        axisLabel: {
          color: c.dim, fontSize: 11, rotate: horizontal ? 55 : 0, hideOverlap: true, margin: 6,
          interval: many && groups > 1 ? (i) => shown[i] : many ? "auto" : (i) => i % nth(labels, horizontal) === 0,
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
    const arrow = this.direction === "forward" ? "→" : "←";
    let head = `${text(this.rows[y].text)} ${arrow} ${text(this.cols[x].text)}`;
    if (this.aggregated)
      head += `<div style="opacity:.7;font-weight:400">worst of ${pairs} pairs: ${text(this.names[a])} ${arrow} ${text(this.names[b])}</div>`;
    return `<div style="font-weight:600;margin-bottom:4px">${head}</div><table style="border-spacing:0">` +
      row("p50", delay(p50)) + row("p99", delay(p99)) + row("min", delay(min)) +
      row("bound", bound === null ? "clocks not synced" : `± ${delay(bound)}`) + row("smallest round trip", delay(rtt)) +
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
  const s = Math.max(Math.min(4, w, h), Math.min(w, h) * 0.34);
  const right = cx + w / 2 - 0.5, top = cy - h / 2 + 0.5;
  return { type: "polygon", shape: { points: [[right - s, top], [right, top], [right, top + s]] },
    style: { fill: LOSS, stroke: dark() ? "#000" : "#fff", lineWidth: s > 5 ? 0.75 : 0 } };
}

export class Pair extends Drawing {
  constructor(chart, el) {
    super(chart, el);
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
    const directions = ["forward", "reverse"];
    let low = Infinity, high = 0;
    for (const direction of directions)
      for (const path of f.paths)
        for (const stat of ["min", "p50", "p99"])
          for (const v of f.series[path][direction][stat])
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
    directions.forEach((direction, g) => {
      const mid = f.median[direction];
      series.push(band(`bound-${direction}`, g, t,
        mid.map((v, i) => (v === null || f.bound[i] === null ? null : Math.max(v - f.bound[i], range[0]))),
        mid.map((v, i) => (v === null || f.bound[i] === null ? null : Math.min(v + f.bound[i], range[1]))),
        c.grey, 0.35));
      f.paths.forEach((path, k) => {
        for (const [stat, style] of [["p99", { width: 1, type: [5, 3], opacity: 0.75 }],
          ["p50", { width: 2 }], ["min", { width: 1, type: [1, 3], opacity: 0.8 }]])
          series.push({
            id: `${direction}-${path}-${stat}`, name: `path ${path}`, type: "line", xAxisIndex: g, yAxisIndex: g,
            data: t.map((x, i) => [x, f.series[path][direction][stat][i]]), showSymbol: false, connectNulls: false,
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
      legend: { type: "scroll", top: 0, right: 8, left: 210, align: "auto", icon: "roundRect", itemWidth: 14, itemHeight: 12,
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
}

export class Clocks extends Drawing {
  shape = null;

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
    for (const b of f.bands) { // a bound far wider than usual, as at a start, does not change the scale
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
}
