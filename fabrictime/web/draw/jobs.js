// Charts of the Jobs tab: iterations over time with verdicts, ranks by time split as bars and as a heat map.
import { Drawing, dark, ink, color, text, delay, short, three, rate, shortRate, above, clockTime, percent, tooltip, row, heading, timeAxis } from "./index.js";

// Kinds of verdict; a mark repeats the colour as a shape.
const KINDS = { healthy: [2, "circle"], network: [5, "triangle"], host: [1, "diamond"], unknown: [-1, "rect"] };
const KIND_NAMES = { healthy: "healthy", network: "slowed by the network", host: "slowed by something else", unknown: "not enough evidence" };
const kindInk = (kind) => (KINDS[kind][0] < 0 ? ink().grey : color(KINDS[kind][0]));

// Parts of a rank's time: compute is neutral, waiting for the network is the warmest colour.
const partInk = (p) => [dark() ? "#46505f" : "#c3cad5", color(3), color(1), color(4), color(5), color(2)][p];

export class Iterations extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    const values = [...f.iteration, ...f.expected, ...(f.band ?? [])].filter((v) => v !== null);
    const rates = [...f.bus, ...f.expected_bus].filter((v) => v !== null);
    const max = above(Math.max(1000, ...values)), most = above(Math.max(1000, ...rates));
    const middle = (i) => (f.begin[i] + f.end[i]) / 2;
    const pairs = (v) => v.map((y, i) => [middle(i), y]);
    const line = { type: "line", animation: false, connectNulls: true, symbolSize: 5, showSymbol: f.keys.length < 40, emphasis: { disabled: true }, cursor: "pointer" };
    const name = { nameLocation: "end", nameGap: 8, nameTextStyle: { color: c.dim, fontSize: 11, align: "left", padding: [0, 0, 0, -58] } };
    const axis = { type: "value", min: 0, splitLine: { lineStyle: { color: c.line } } };
    const at = f.keys.indexOf(f.chosen);
    const marks = f.marks.map((m) => ({ xAxis: m[0], lineStyle: { color: kindInk(m[2]), width: 1, type: [3, 3] } }));
    const chosen = at < 0 ? [] : [[{ xAxis: f.begin[at] }, { xAxis: f.end[at] }]];
    const area = { silent: true, animation: false, itemStyle: { color: c.lit, opacity: 0.25 }, data: chosen };
    const expected = f.expected.some((v) => v !== null);
    const band = f.band === null ? [] : [[{ yAxis: f.band[0] }, { yAxis: f.band[1] }]];
    this.chart.setOption({
      animation: false,
      grid: [{ left: 66, right: 12, top: 30, height: "44%" }, { left: 66, right: 12, top: "68%", height: "14%" }, { left: 66, right: 12, bottom: 22, height: 12 }],
      tooltip: { ...tooltip(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.dim } }, formatter: (ps) => this.tip(ps) },
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      xAxis: [timeAxis(c, 0, [f.from, f.to], false), timeAxis(c, 1, [f.from, f.to], false), timeAxis(c, 2, [f.from, f.to], true)],
      yAxis: [
        { ...axis, gridIndex: 0, max, interval: max / 2, ...name, name: values.length ? `iteration${expected ? "; dashed: expected" : ""}${f.band ? "; band: healthy 10% to 90%" : ""}` : "no iterations found in this job", axisLabel: { color: c.dim, fontSize: 11, formatter: short } },
        { ...axis, gridIndex: 1, max: most, interval: most, ...name, nameGap: 13, name: "bus bandwidth", axisLabel: { color: c.dim, fontSize: 11, formatter: shortRate } },
        { type: "category", gridIndex: 2, data: [""], axisLine: { show: false }, axisTick: { show: false } },
      ],
      series: [
        { ...line, id: "iteration", data: pairs(f.iteration), lineStyle: { color: color(0), width: 1.8 }, itemStyle: { color: color(0) }, z: 4,
          markLine: { silent: true, symbol: "none", animation: false, label: { show: false }, data: marks }, markArea: area },
        { ...line, id: "expected", data: pairs(f.expected), showSymbol: false, step: "middle", lineStyle: { color: c.dim, width: 1.2, type: [5, 4] }, itemStyle: { color: c.dim },
          markArea: { silent: true, animation: false, itemStyle: { color: color(2), opacity: 0.16 }, data: band } },
        { ...line, id: "bus", data: pairs(f.bus), xAxisIndex: 1, yAxisIndex: 1, showSymbol: false, lineStyle: { color: color(4), width: 1.4 }, itemStyle: { color: color(4) } },
        { ...line, id: "expected bus", data: pairs(f.expected_bus), xAxisIndex: 1, yAxisIndex: 1, showSymbol: false, step: "middle", lineStyle: { color: c.dim, width: 1, type: [5, 4] }, itemStyle: { color: c.dim } },
        { id: "marks", type: "scatter", animation: false, z: 8, clip: false, symbolSize: 9, silent: true,
          data: f.marks.map((m) => ({ value: [m[0], max], symbol: KINDS[m[2]][1], itemStyle: { color: kindInk(m[2]) } })) },
        { id: "verdicts", type: "custom", xAxisIndex: 2, yAxisIndex: 2, silent: true, animation: false, progressive: 0, clip: true, encode: { x: [0, 1] }, data: f.keys.map((_, i) => [f.begin[i], f.end[i], 0]),
          renderItem: (params, api) => {
            const i = params.dataIndex, next = f.begin[i + 1] ?? f.end[i], to = next - f.end[i] < 2000 ? next : f.end[i];
            const [x0, y] = api.coord([f.begin[i], 0]), [x1] = api.coord([to, 0]);
            return { type: "rect", shape: { x: x0, y: y - 5, width: Math.max(x1 - x0, 1.5), height: 10 }, style: { fill: kindInk(f.kind[i]), opacity: f.kind[i] === "healthy" ? 0.55 : 1 } };
          } },
      ],
    }, { replaceMerge: ["series"] });
  }

  tip(ps) {
    const f = this.last, i = this.nearest(ps[0]?.axisValue);
    if (i < 0) return "";
    const mark = f.marks.find((m) => m[0] === f.begin[i]);
    return heading(`${clockTime(f.begin[i])} to ${clockTime(f.end[i])} UTC`) + row("verdict", text(f.names[f.verdict[i]])) +
      row("", KIND_NAMES[f.kind[i]]) + row("iteration", `${delay(f.iteration[i])}, expected ${delay(f.expected[i])}`) +
      row("bus bandwidth", `${rate(f.bus[i])}, expected ${rate(f.expected_bus[i])}`) + (mark ? row("from here", text(mark[1])) : "") + "</table>";
  }

  nearest(at) {
    const f = this.last;
    if (at === undefined) return -1;
    let best = -1, least = Infinity;
    for (let i = 0; i < f.keys.length; i++) {
      const d = at < f.begin[i] ? f.begin[i] - at : at > f.end[i] ? at - f.end[i] : 0;
      if (d < least) { least = d; best = i; }
    }
    return best;
  }

  pointed(x) {
    const i = this.last ? this.nearest(this.chart.convertFromPixel({ xAxisIndex: 0 }, x)) : -1;
    return i < 0 || x < 60 ? null : { name: this.last.keys[i] };
  }
}

function rankTip(f, k) {
  const [rank, host, nic, named, last] = f.ranks[k];
  return heading(`rank ${rank}${named ? ", named by the verdict" : ""}`) + row("host", text(host)) + (nic ? row("NIC", text(nic)) : "") +
    f.names.map((name, p) => row(`<span style="color:${partInk(p)}">■</span> ${name}`,
      `${delay((f.parts[p][k] * f.length) / 1000)}, ${percent(f.parts[p][k] / 1000)}`)).reverse().join("") + row("arrived last in", `${last} operations`) + "</table>";
}

export class RankBars extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink(), count = Math.min(f.shown, f.ranks.length);
    const label = (k) => `${f.ranks[k][3] ? "▸ " : ""}rank ${f.ranks[k][0]} · ${f.ranks[k][1]}`;
    const labels = Array.from({ length: count }, (_, k) => label(k));
    const narrow = this.chart.getWidth() < 460, longest = Math.max(6, ...labels.map((s) => s.length));
    const chosen = f.ranks.findIndex((r) => r[0] === f.chosen);
    this.chart.setOption({
      animation: false,
      grid: { left: Math.min(narrow ? 120 : 200, 16 + longest * 6.2), right: 18, top: narrow ? 50 : 30, bottom: 24 },
      legend: { show: true, top: 0, left: 0, icon: "roundRect", itemWidth: 11, itemHeight: 8, itemGap: 9, selectedMode: false, textStyle: { color: c.text, fontSize: 11 }, data: f.names },
      tooltip: { ...tooltip(c), trigger: "axis", axisPointer: { type: "shadow" }, formatter: (ps) => (ps.length ? rankTip(f, ps[0].dataIndex) : "") },
      xAxis: { type: "value", min: 0, max: f.length / 1e6, axisLabel: { color: c.dim, fontSize: 11, hideOverlap: true, formatter: (v) => short(v * 1e6) }, splitLine: { lineStyle: { color: c.line } } },
      yAxis: { type: "category", inverse: true, data: labels, axisLine: { show: false }, axisTick: { show: false },
        axisLabel: { color: (v, k) => (k === chosen ? c.lit : f.ranks[k]?.[3] ? c.text : c.dim), fontWeight: "normal", fontSize: 11, interval: 0, width: narrow ? 110 : 190, overflow: "truncate" } },
      series: f.names.map((each, p) => ({
        id: each, name: each, type: "bar", stack: "time", animation: false, barCategoryGap: "26%", cursor: "pointer", itemStyle: { color: partInk(p) }, emphasis: { disabled: true },
        data: f.parts[p].slice(0, count).map((v, k) => ({ value: (v * f.length) / 1e9, itemStyle: k === chosen ? { borderColor: c.text, borderWidth: 1.2 } : {} })),
      })),
    }, { replaceMerge: ["series"] });
  }

  pointed(x, y) {
    const f = this.last, at = f ? this.chart.convertFromPixel({ yAxisIndex: 0 }, y) : -1;
    return f && at >= 0 && at < Math.min(f.shown, f.ranks.length) ? { name: String(f.ranks[at][0]) } : null;
  }

  resized() { this.repaint(); }
}

// Each part is a row, each rank a column, in colours of its difference from the median rank.
const MIN_COLUMN = 3;

export class RankMap extends Drawing {
  // Ranks that share a column of pixels are one column: in each part, the rank with the greatest difference counts.
  columns(f) {
    const count = f.ranks.length, width = Math.max(20, this.chart.getWidth() - 104);
    const medians = f.parts.map((part) => [...part].sort((a, b) => a - b)[count >> 1] ?? 0);
    const each = Math.max(1, Math.ceil(count / (width / MIN_COLUMN)));
    this.each = each;
    this.worst = []; // the rank that a column's tooltip and click are about
    const cells = [];
    for (let first = 0, x = 0; first < count; first += each, x++) {
      let most = -1;
      f.parts.forEach((part, p) => {
        let at = first;
        for (let k = first; k < Math.min(count, first + each); k++)
          if (Math.abs(part[k] - medians[p]) > Math.abs(part[at] - medians[p])) at = k;
        const difference = (part[at] - medians[p]) / 10;
        if (Math.abs(difference) > most) { most = Math.abs(difference); this.worst[x] = at; }
        cells.push([x, p, difference]);
      });
    }
    return cells;
  }

  frame(f) {
    this.last = f;
    const c = ink(), cells = this.columns(f), count = this.worst.length;
    const sorted = f.sort < 0 ? "ranks" : `ranks, most ${f.names[f.sort]} first`;
    const bound = Math.max(2, ...cells.map((cell) => Math.abs(cell[2])));
    this.bound = bound;
    this.chart.setOption({
      animation: false,
      grid: { left: 88, right: 16, top: 26, bottom: 40 },
      tooltip: { ...tooltip(c), trigger: "item", formatter: (p) => rankTip(f, this.worst[p.value[0]]) },
      xAxis: { type: "category", data: this.worst.map((k) => String(f.ranks[k][0])), name: this.each > 1 ? `${sorted}; ${this.each} ranks a column` : sorted, nameLocation: "middle", nameGap: 22, nameTextStyle: { color: c.dim, fontSize: 11 },
        axisTick: { show: false }, axisLine: { lineStyle: { color: c.line } }, axisLabel: { color: c.dim, fontSize: 11, hideOverlap: true } },
      yAxis: { type: "category", inverse: true, data: f.names, axisTick: { show: false }, axisLine: { show: false }, axisLabel: { color: c.dim, fontSize: 11 } },
      visualMap: { type: "continuous", min: -bound, max: bound, orient: "horizontal", right: 12, top: -4, itemWidth: 9, itemHeight: 90, calculable: false, precision: 0,
        text: this.chart.getWidth() < 460 ? [`+${three(bound)}`, "points from the median"] : [`+${three(bound)} points of the interval`, "less than the median rank"], textStyle: { color: c.dim, fontSize: 11 }, textGap: 6, inRange: { color: [color(0), c.none, color(5)] } },
      series: [{ id: "map", type: "heatmap", data: cells, progressive: 0, animation: false, cursor: "pointer", itemStyle: { borderWidth: count > 100 ? 0 : 1, borderColor: c.card },
        emphasis: { itemStyle: { borderColor: c.text, borderWidth: 1 } } }],
    });
  }

  pointed(x) {
    const f = this.last, at = f ? this.chart.convertFromPixel({ xAxisIndex: 0 }, x) : -1;
    return f && at >= 0 && at < this.worst.length && x > 80 ? { name: String(f.ranks[this.worst[at]][0]) } : null;
  }

  resized() { this.repaint(); }
}
