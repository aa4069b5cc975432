// Charts of links: a cable's past hour, its queues of the last minute, and contention as bars over time.
import { Drawing, ink, color, text, delay, bytes, above, clockTime, tooltip, row, heading, timeAxis, stateInk, STATE_NAMES, LOSS } from "./index.js";

export class Hour extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    this.chart.setOption({
      animation: false, grid: { left: 8, right: 8, top: 16, bottom: 20 },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: { ...timeAxis(c, 0, [f.from, f.to], true), axisLabel: { color: c.dim, fontSize: 11, hideOverlap: true, formatter: (v) => clockTime(v).slice(0, 5) } },
      yAxis: { type: "value", min: 0, max: 1, show: false },
      series: [
        { id: "states", type: "custom", data: f.states.map((s) => [s[0], 0.4, s[1], s[2]]), encode: { x: [0, 2], y: 1 }, animation: false, progressive: 0,
          renderItem: (params, api) => {
            const [x0, y] = api.coord([api.value(0), 0.4]), [x1] = api.coord([api.value(2), 0.4]);
            const kind = api.value(3);
            return { type: "rect", shape: { x: x0, y: y - 8, width: Math.max(x1 - x0, 2), height: 16, r: 2 }, style: { fill: stateInk(kind), opacity: kind < 2 ? 0.55 : 1 } };
          } },
        { id: "flaps", type: "scatter", animation: false, z: 5, symbol: "path://M0,0L5,8L10,0Z", symbolSize: [8, 7], symbolOffset: [0, -4],
          data: f.flaps.map((t) => [t, 0.86]), itemStyle: { color: stateInk(4) } },
      ],
    });
  }

  tip(p) {
    const f = this.last;
    if (p.seriesId === "flaps") return heading("went down") + row("at", `${clockTime(f.flaps[p.dataIndex])} UTC`) + "</table>";
    const s = f.states[p.dataIndex];
    return s ? heading(STATE_NAMES[s[2]]) + row("from", `${clockTime(s[0])} UTC`) + row("to", s[1] >= f.to ? "now" : `${clockTime(s[1])} UTC`) + "</table>" : "";
  }
}

export class Minute extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink(), series = [];
    f.directions.forEach((direction, k) => {
      const pairs = (v) => direction.t.map((t, i) => [t, v[i]]);
      const common = { type: "line", animation: false, showSymbol: direction.t.length < 3, symbolSize: 4, name: direction.name, emphasis: { disabled: true }, itemStyle: { color: color(k) } };
      series.push({ ...common, id: `mean ${k}`, data: pairs(direction.mean), lineStyle: { color: color(k), width: 1.8 } });
      series.push({ ...common, id: `max ${k}`, data: pairs(direction.max), showSymbol: false, lineStyle: { color: color(k), width: 1, type: [4, 3], opacity: 0.8 } });
      series.push({ ...common, id: `load ${k}`, data: pairs(direction.load), xAxisIndex: 1, yAxisIndex: 1, showSymbol: false, lineStyle: { color: color(k), width: 1.4 } });
    });
    const max = Math.max(1000, ...f.directions.flatMap((direction) => direction.max));
    const value = { axisLabel: { color: c.dim, fontSize: 11, hideOverlap: true }, splitLine: { lineStyle: { color: c.line } }, splitNumber: 3 };
    const name = { nameLocation: "end", nameGap: 11, nameTextStyle: { color: c.dim, fontSize: 11, align: "left", padding: [0, 0, 0, -46] } };
    this.chart.setOption({
      animation: false,
      grid: [{ left: 52, right: 10, top: 46, height: "38%" }, { left: 52, right: 10, top: "76%", bottom: 20 }],
      legend: { type: "scroll", top: 0, left: 4, icon: "roundRect", itemWidth: 12, itemHeight: 12, textStyle: { color: c.text, fontSize: 11 }, data: f.directions.map((each) => each.name) },
      tooltip: { ...tooltip(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.dim } }, formatter: (ps) => this.tip(ps) },
      xAxis: [timeAxis(c, 0, [f.from, f.to], false), timeAxis(c, 1, [f.from, f.to], true)],
      yAxis: [
        { type: "value", min: 0, max: above(max), gridIndex: 0, interval: above(max) / 2, ...value, ...name, name: "depth: mean, dashed deepest", axisLabel: { ...value.axisLabel, formatter: bytes } },
        { type: "value", min: 0, max: 100, gridIndex: 1, ...value, ...name, name: "time busy", splitNumber: 2, axisLabel: { ...value.axisLabel, formatter: "{value}%" } },
      ],
      series,
    });
  }

  tip(ps) {
    const at = ps[0]?.axisValue;
    if (at === undefined) return "";
    const rows = this.last.directions.map((direction, k) => {
      const i = nearest(direction.t, at);
      return i < 0 ? "" : row(`<span style="color:${color(k)}">■</span> ${text(direction.name)}`,
        `${bytes(direction.mean[i])}, deepest ${bytes(direction.max[i])}` + (direction.load[i] === null ? "" : `, ${direction.load[i]}%`));
    });
    return heading(`${clockTime(at)} UTC`) + rows.join("") + "</table>";
  }
}

function nearest(t, at) {
  let best = -1;
  t.forEach((each, i) => { if (best < 0 || Math.abs(each - at) < Math.abs(t[best] - at)) best = i; });
  return best;
}

// Kinds of contention, in colours distinguishable with any kind of colour vision.
const KIND_NAMES = { COLLISION: "collision in the fabric", INCAST: "incast", SLOW_SENDER: "slow sender", SLOW_RECEIVER: "slow receiver",
  PAUSE_STORM: "pause storm", UNKNOWN: "kind unknown" };
const KINDS = { COLLISION: 0, INCAST: 1, SLOW_SENDER: 2, SLOW_RECEIVER: 3, PAUSE_STORM: 5, UNKNOWN: 6 };
export const kindInk = (kind) => color(KINDS[kind] ?? 6);

export class Gantt extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    const longest = Math.max(4, ...f.rows.map((name) => name.length));
    const max = Math.max(1, ...f.bars.map((b) => b[4]));
    const kinds = [...new Set(f.bars.map((b) => b[3]))];
    const every = Math.max(1, Math.ceil((13 * f.rows.length) / Math.max(1, this.chart.getHeight() - 54))); // names
    this.chart.setOption({
      animation: false, grid: { left: Math.min(240, 14 + longest * 6.1), right: 14, top: 30, bottom: 24 },
      legend: { show: true, top: 0, right: 8, icon: "roundRect", itemWidth: 12, itemHeight: 8, selectedMode: false, textStyle: { color: c.text, fontSize: 11 },
        data: kinds.map((kind) => ({ name: KIND_NAMES[kind] ?? kind, itemStyle: { color: kindInk(kind) } })) },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => this.tip(p) },
      xAxis: { ...timeAxis(c, 0, [f.from, f.to], true), splitLine: { show: true, lineStyle: { color: c.line, opacity: 0.6 } } },
      yAxis: { type: "category", data: f.rows, inverse: true, axisLine: { show: false }, axisTick: { show: false }, splitLine: { show: false },
        axisLabel: { color: c.dim, fontSize: 11, interval: every - 1, hideOverlap: true, width: 228, overflow: "truncate" } },
      series: [
        { id: "bars", type: "custom", cursor: "pointer", animation: false, progressive: 0, encode: { x: [1, 2], y: 0 }, clip: true,
          data: f.bars.map((b) => ({ value: [b[0], b[1], b[2]] })),
          renderItem: (params, api) => {
            const b = f.bars[params.dataIndex];
            const [x0, y] = api.coord([b[1], b[0]]), [x1] = api.coord([b[2], b[0]]);
            const height = Math.min(26, api.size([0, 1])[1] * 0.82), h = Math.max(4, height * (0.3 + 0.7 * Math.sqrt(b[4] / max)));
            const chosen = b[5] === f.chosen;
            return { type: "rect", shape: { x: x0, y: y - h / 2, width: Math.max(x1 - x0, 3), height: h, r: 2 },
              style: { fill: kindInk(b[3]), opacity: b[6] ? 1 : 0.6, stroke: chosen ? c.text : b[6] ? LOSS : "none", lineWidth: chosen ? 2 : b[6] ? 1.4 : 0 } };
          } },
        ...kinds.map((kind) => ({ id: `kind ${kind}`, name: KIND_NAMES[kind] ?? kind, type: "scatter", data: [], itemStyle: { color: kindInk(kind) } })),
      ],
    }, { replaceMerge: ["series"] });
  }

  tip(p) {
    const b = this.last.bars[p.dataIndex];
    if (!b || p.seriesId !== "bars") return "";
    return heading(text(this.last.rows[b[0]])) + row("kind", text(KIND_NAMES[b[3]] ?? b[3])) + row("from", `${clockTime(b[1])} UTC`) +
      row(b[6] ? "active for" : "to", b[6] ? delay((b[2] - b[1]) * 1e6) : `${clockTime(b[2])} UTC`) + row("deepest", bytes(b[7])) +
      row("weight", `${bytes(b[4])}·s over the threshold`) + "</table>";
  }

  clicked(p) {
    const b = p.seriesId === "bars" ? this.last?.bars[p.dataIndex] : undefined;
    return b ? { name: b[5] } : null;
  }
}
