// Charts of the Clocks tab: quantiles of all clocks with lines of some, the strip of bounds, state timelines, the mesh.
import {
  Drawing, LOSS, dark, ink, color, text, delay, short, percent,
  clockTime, below, above, tooltip, row, heading, timeAxis, band,
} from "./index.js";

const STATES = ["SYNCED", "HOLDOVER", "UNSYNCED"];
const stateColor = (k) => (dark() ? ["#2fbf8f", "#f0a830", "#ff6b4a"] : ["#00875f", "#b86e00", "#c8361d"])[k];
const NIC_DOTS = 40;
const UNKNOWN = "#8b94a5";
const EVENTS = { NEW: "circle", STEP: "triangle", RATE_CHANGE: "diamond", FALSETICKER: "rect", MERGED: "roundRect" };
const eventColor = (kind) => (kind === "FALSETICKER" || kind === "STEP" ? LOSS : ink().text);

export class Fleet extends Drawing {
  shape = null;

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
    const include = (v) => { if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); } };
    f.lines.forEach((l) => l.v.forEach(include));
    for (const b of f.bands) { // a band far wider than usual, as at a start, does not change the scale
      const widths = b.low.flatMap((v, i) => (v === null || b.high[i] === null ? [] : [b.high[i] - v])).sort((x, y) => x - y);
      const usual = 3 * (widths[widths.length >> 1] ?? 0);
      b.low.forEach((v, i) => { if (v !== null && b.high[i] - v <= usual) { include(v); include(b.high[i]); } });
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
    const narrow = this.chart.getWidth() < 520; // the legend's names take several lines
    this.chart.setOption({
      animation: false, grid: { left: 60, right: 14, top: narrow ? 62 : 28, bottom: 22 },
      legend: { type: narrow ? "plain" : "scroll", top: 0, right: 8, left: narrow ? 4 : 60, icon: "roundRect", itemWidth: 12, itemHeight: 12, itemGap: 10,
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
      const worst = f.worst && l.name === f.worst.line && f.worst.names[i] ? `: ${text(f.worst.names[i])}` : "";
      const tone = l.color < 0 ? ink().grey : color(l.color);
      return row(`<span style="color:${tone}">■</span> ${text(l.name)}${worst}`, delay(l.v[i]) + wide);
    });
    const near = f.marks.filter((m) => Math.abs(m.t - f.t[i]) <= (f.t[1] - f.t[0]));
    if (!rows.length && !near.length) return "";
    return heading(`${clockTime(f.t[i])} UTC`) + rows.join("") +
      near.slice(0, 6).map((m) => row(text(m.clock), text(m.text))).join("") + "</table>";
  }
}

export class Strip extends Drawing {
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
    return heading(text(name)) + row("state", STATES[state]) + row("bound", bound === null ? "none: unusable" : `± ${delay(bound)}`) +
      row("offset", delay(offset)) + row("residual", delay(residual)) + row("rank", `${rank} of ${this.last.clocks}`) + "</table>";
  }

  clicked(p) {
    const found = this.last?.points[p.dataIndex];
    return found ? { name: found[3] } : null;
  }
}

export class Timeline extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    const longest = Math.max(4, ...f.rows.map((name) => name.length));
    this.chart.setOption({
      animation: false, grid: { left: Math.min(150, 14 + longest * 6.2), right: 14, top: 8, bottom: 22 },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: { ...timeAxis(c, 0, f.t, true) },
      yAxis: { type: "category", data: f.rows, inverse: true, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
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
      return m ? heading(text(f.rows[m[0]])) + row(`${clockTime(m[1])} UTC`, text(m[3])) + "</table>" : "";
    }
    const s = f.segments[p.dataIndex];
    if (!s) return "";
    return heading(text(f.rows[s[0]])) + row(STATES[s[3]], `${clockTime(s[1])} to ${clockTime(s[2])} UTC`) + "</table>";
  }

  clicked(p) {
    const f = this.last, index = p.seriesId === "events" ? f.marks[p.dataIndex]?.[0] : f.segments[p.dataIndex]?.[0];
    return index === undefined ? null : { name: f.rows[index] };
  }
}

export class Mesh extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    const [width, height] = [this.chart.getWidth(), this.chart.getHeight()];
    const names = f.labels ? f.nodes.map((n) => n[0]) : f.groups.map((g) => g[0]);
    const margin = Math.min(110, 12 + 6 * Math.max(3, ...names.map((n) => n.length)));
    const size = Math.max(60, Math.min(width - 2 * margin, height - 44));
    const at = (k) => [f.nodes[k][1], f.nodes[k][2]];
    const dot = f.nodes.length > 100 ? 6 : f.nodes.length > NIC_DOTS ? 8 : 11;
    const around = (x, y) => (x > 0.3 ? "right" : x < -0.3 ? "left" : y > 0 ? "bottom" : "top");
    const tone = (state) => (state === null ? UNKNOWN : stateColor(STATES.indexOf(state)));
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
      row("smallest round trip", delay(e[4])) + row("samples accepted", e[5]) + "</table>";
  }

  clicked(p) {
    return p.seriesId === "nics" && this.last ? { name: this.last.nodes[p.dataIndex][3] } : null;
  }

  resized() { this.repaint(); }
}
