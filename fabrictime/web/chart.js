// One live chart; KINDS lists the kinds. The server sends frames through frame().
// Emits `ready`, `ack` (the frame is drawn, the next one may come), `cell`, and `pick` with a name.
// ECharts has 1.1 MB: it is loaded once the tab is mounted, so that texts and tables do not wait for it.
import { Heat, Pair, Clocks } from "fabrictime-draw/delays.js";
import { Fleet, Strip, Timeline, Mesh } from "fabrictime-draw/clocks.js";
import { Hour, Minute, Gantt } from "fabrictime-draw/fabric.js";
import { onScheme } from "fabrictime-draw/scheme.js";
import { background, save } from "fabrictime-draw/picture.js";
import { FlowHistory } from "fabrictime-draw/actions.js";
import { Iterations, RankBars, RankMap } from "fabrictime-draw/jobs.js";

// Longest wait of a drawing until the browser has painted the texts.
const TEXT_FIRST_MS = 300;
const whenIdle = window.requestIdleCallback ?? ((draw) => requestAnimationFrame(() => setTimeout(draw)));

const KINDS = { heat: Heat, pair: Pair, clocks: Clocks, fleet: Fleet, strip: Strip, timeline: Timeline, mesh: Mesh,
  hour: Hour, minute: Minute, gantt: Gantt, "flow-history": FlowHistory,
  iterations: Iterations, "rank-bars": RankBars, "rank-map": RankMap };

export default {
  template: `<div class="ft-chart"><div class="ft-legend" v-show="kind === 'heat'"></div><div class="ft-canvas"></div><div class="ft-empty" v-if="empty && !drawn">{{ empty }}</div></div>`,
  props: { kind: String, empty: String },
  data: () => ({ drawn: false }),
  async mounted() {
    await new Promise((resolve) => setTimeout(resolve, 0));
    const { echarts } = await import("nicegui-echart");
    if (!this.$el?.isConnected) return; // the tab was left meanwhile
    this.echarts = echarts;
    const canvas = this.$el.querySelector(".ft-canvas");
    this.chart = echarts.init(canvas, null, { renderer: "canvas", useUTC: true });
    this.drawer = new KINDS[this.kind](this.chart, this.$el);
    this.chart.on("click", (p) => {
      const found = this.drawer.clicked?.(p);
      if (found) this.$emit(found.name === undefined ? "cell" : "pick", found);
    });
    this.chart.getZr().on("click", (e) => { // anywhere in the plot: points are hard to hit with a finger
      const found = this.drawer.pointed?.(e.offsetX, e.offsetY);
      if (found) this.$emit("pick", found);
    });
    this.watch = new ResizeObserver(() => {
      this.chart.resize();
      this.drawer.resized?.();
    });
    this.watch.observe(canvas);
    this.endScheme = onScheme(() => this.drawer.repaint());
    this.frames = 0;
    this.$el.ft = { chart: this.chart, drawer: this.drawer };
    this.$emit("ready");
  },
  beforeUnmount() {
    this.endScheme?.();
    this.watch?.disconnect();
    this.chart?.dispose();
    this.drawer = null;
  },
  methods: {
    picture(name, kind) {
      if (!this.chart) return;
      const { echarts } = this;
      const [width, height] = [this.chart.getWidth(), this.chart.getHeight()];
      if (kind === "PNG") { save(name, this.chart.getDataURL({ pixelRatio: 2, backgroundColor: background() })); return; }
      const copy = echarts.init(null, null, { renderer: "svg", ssr: true, useUTC: true, width, height });
      copy.setOption({ ...this.chart.getOption(), animation: false, backgroundColor: background() });
      save(name, `data:image/svg+xml;charset=utf-8,${encodeURIComponent(copy.renderToSVGString())}`);
      copy.dispose();
    },
    frame(seq, f) {
      if (!this.drawer) return; // not mounted yet: the server sends a whole frame after `ready`
      // The texts of this message are painted before the chart, which takes far longer.
      whenIdle(() => {
        if (!this.drawer) return;
        this.drawer.frame(f);
        this.drawn = true;
        this.frames++;
        this.$el.dataset.frames = this.frames;
        requestAnimationFrame(() => this.$emit("ack", seq));
      }, { timeout: TEXT_FIRST_MS });
    },
  },
};
