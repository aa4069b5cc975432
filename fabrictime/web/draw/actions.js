// One flow over time: rate, limit, round trip, and a mark for each action. A click on a mark returns its decision.
import { Drawing, ink, color, text, delay, short, above, clockTime, rate, shortRate, tooltip, row, heading, timeAxis } from "./index.js";

// Each cause has its own colour and shape.
const CAUSES = { DOWN: [5, "triangle"], GREY: [1, "triangle"], HEALED: [2, "circle"], COLLISION: [0, "diamond"], DELAY: [3, "rect"],
  INCAST: [7, "diamond"], DRAINED: [4, "circle"], SLICE: [6, "rect"] };

export class FlowHistory extends Drawing {
  frame(f) {
    this.last = f;
    const c = ink();
    const max = above(Math.max(1000, ...f.rate, ...f.limit));
    const slowest = above(Math.max(1000, ...f.rtt));
    const pairs = (v) => f.t.map((t, i) => [t, v[i]]);
    const line = { type: "line", animation: false, connectNulls: false, showSymbol: f.t.length < 12, symbolSize: 4, emphasis: { disabled: true } };
    const mark = (m) => ({ tone: color((CAUSES[m[1]] ?? [6])[0]), shape: (CAUSES[m[1]] ?? [6, "pin"])[1] });
    const name = { nameLocation: "end", nameGap: 9, nameTextStyle: { color: c.dim, fontSize: 11, align: "left", padding: [0, 0, 0, -58] } };
    const axis = { type: "value", min: 0, splitNumber: 3, splitLine: { lineStyle: { color: c.line } } };
    const lines = f.marks.map((m) => ({ xAxis: m[0], lineStyle: { color: mark(m).tone, width: m[5] ? 1.5 : 1, type: m[5] ? "solid" : [2, 4] } }));
    const marked = { silent: true, symbol: "none", animation: false, label: { show: false }, data: lines };
    this.chart.setOption({
      animation: false,
      grid: [{ left: 66, right: 10, top: 34, height: "42%" }, { left: 66, right: 10, top: "72%", bottom: 20 }],
      tooltip: { ...tooltip(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.dim } }, formatter: (ps) => this.tip(ps) },
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      xAxis: [timeAxis(c, 0, [f.from, f.to], false), timeAxis(c, 1, [f.from, f.to], true)],
      yAxis: [
        { ...axis, gridIndex: 0, max, interval: max / 2, ...name, name: "rate; marks: actions", axisLabel: { color: c.dim, fontSize: 11, formatter: shortRate } },
        { ...axis, gridIndex: 1, max: slowest, interval: slowest / 2, ...name, name: "round trip", axisLabel: { color: c.dim, fontSize: 11, formatter: short } },
      ],
      series: [
        { ...line, id: "rate", data: pairs(f.rate), lineStyle: { color: color(0), width: 1.8 }, itemStyle: { color: color(0) }, markLine: marked },
        { ...line, id: "limit", data: pairs(f.limit), showSymbol: false, lineStyle: { color: c.dim, width: 1, type: [4, 3] } },
        { ...line, id: "rtt", data: pairs(f.rtt), xAxisIndex: 1, yAxisIndex: 1, lineStyle: { color: color(1), width: 1.6 }, itemStyle: { color: color(1) }, markLine: marked },
        { id: "marks", type: "scatter", animation: false, z: 8, cursor: "pointer", symbolSize: 12, clip: false,
          data: f.marks.map((m) => ({ value: [m[0], max], symbol: mark(m).shape,
            itemStyle: { color: m[5] ? mark(m).tone : c.card, borderColor: mark(m).tone, borderWidth: 2 } })) },
      ],
    });
  }

  tip(ps) {
    const f = this.last, at = ps[0]?.axisValue;
    if (at === undefined) return "";
    let i = -1;
    f.t.forEach((t, k) => { if (i < 0 || Math.abs(t - at) < Math.abs(f.t[i] - at)) i = k; });
    const near = f.marks.filter((m) => Math.abs(m[0] - at) <= (f.to - f.from) / 60);
    let html = heading(`${clockTime(at)} UTC`);
    if (i >= 0)
      html += row("rate", rate(f.rate[i])) + (f.limit[i] === null ? "" : row("limit", rate(f.limit[i]))) +
        row("round trip", delay(f.rtt[i])) + row("path (source port)", f.path[i] ?? "–");
    return html + near.slice(0, 6).map((m) => row(`${text(m[4])}`, `${text(m[2])}: ${text(m[3])}`)).join("") + "</table>";
  }

  clicked(p) {
    const m = p.seriesId === "marks" ? this.last?.marks[p.dataIndex] : undefined;
    return m ? { name: m[6] } : null;
  }
}
