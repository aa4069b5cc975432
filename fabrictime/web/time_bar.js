// The time control of all tabs: live or a past moment, a slider over the last N or any past span, alerts and decisions
// as marks on it, playing forward, and the switch of the colour scheme.
// put({now, at, end, range, marks, note, loading}): times in ms, `at` and `end` null for now; `range` in s; a mark is
// [ms, kind, text]; `loading` until the page shows the moment. The property `first` is the same before the page is
// connected, with `pressed` and `moment` for the first paint. Emits `ready`, `seek` with {at, end, range, push}. A past moment is kept in links.
import { setScheme, scheme } from "fabrictime-draw/scheme.js";

const RANGES = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 d"]];
const SPEEDS = [1, 4, 10, 30, 60];
const TICK_MS = 1000, TOLD_MS = 2000;
const SCHEMES = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const day = (ms) => new Date(ms).toISOString().slice(0, 10);
const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

function ago(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= size) return `${Math.round((seconds / size) * 10) / 10} ${unit}`;
  return `${Math.max(0, Math.round(seconds))} s`;
}

window.ftKeepMoment = function keepMoment(address) { // a past moment and the range stay when another tab or object is opened
  const url = new URL(address, location.href), here = new URLSearchParams(location.search);
  if (url.origin !== location.origin) return address;
  for (const name of ["at", "range"])
    if (here.has(name) && !url.searchParams.has(name)) url.searchParams.set(name, here.get(name));
  return url.href;
};

let listens = false;
function listenOnce() {
  if (listens) return;
  listens = true;
  addEventListener("popstate", () => location.reload());
  document.addEventListener("click", (e) => {
    const link = e.target.closest?.("a[href]");
    if (link) link.href = window.ftKeepMoment(link.href);
  }, true);
}

export default {
  template: `<div class="ft-time" role="group" aria-label="Time">
<button type="button" class="ft-time-live" :aria-pressed="pressed" data-testid="time-live">Live</button>
<button type="button" class="ft-time-step" data-testid="time-pause" aria-label="Pause updates" title="pause updates">❙❙</button>
<button type="button" class="ft-time-step" data-testid="time-before" aria-label="Previous mark" title="previous alert or decision">|◀</button>
<button type="button" class="ft-time-step" data-testid="time-play" aria-label="Play forward" title="play forward" hidden>▶</button>
<button type="button" class="ft-time-step" data-testid="time-after" aria-label="Next mark" title="next alert or decision">▶|</button>
<select class="ft-time-choice" data-testid="time-speed" aria-label="Speed" hidden></select>
<div class="ft-time-track"><div class="ft-time-marks" aria-hidden="true"></div><input type="range" max="1" value="1" aria-label="Moment" data-testid="time-slider"></div>
<output class="ft-time-text" data-testid="time-text">{{ moment }}</output>
<select class="ft-time-choice" data-testid="time-range" aria-label="Span of the slider"><option>last 1 h</option></select>
<input type="text" size="19" maxlength="19" autocomplete="off" spellcheck="false" class="ft-time-choice ft-time-pick" data-testid="time-pick" aria-label="Moment, UTC" title="any moment, UTC">
<button type="button" class="ft-time-step" data-testid="scheme">◐</button>
<div class="ft-time-note" data-testid="time-note" hidden></div></div>`,
  emits: ["ready", "seek"],
  props: { first: Object, pressed: String, moment: String },
  mounted() {
    listenOnce();
    const part = (name) => this.$el.querySelector(`[data-testid=${name}]`);
    for (const name of ["live", "pause", "before", "play", "after", "speed", "slider", "text", "range", "pick", "note"])
      this[`${name}Part`] = part(`time-${name}`);
    this.marksPart = this.$el.querySelector(".ft-time-marks");
    this.state = { ...this.first };
    this.offset = this.state.now - Date.now(); this.playing = false; this.waits = this.state.loading;
    this.aliveMs = null; // when the page was last connected, ms; null before the first message
    this.sliderPart.step = 1000;
    this.place(); // without its span, a reader's first move would lead to 1970
    this.rangePart.replaceChildren();
    for (const [seconds, name] of RANGES) this.rangePart.add(new Option(`last ${name}`, seconds));
    for (const factor of SPEEDS) this.speedPart.add(new Option(`${factor}×`, factor));
    this.speedPart.value = 10;
    this.livePart.addEventListener("click", () => this.seek(null, { end: null }));
    this.pausePart.addEventListener("click", () => this.seek(this.now(), {}));
    this.playPart.addEventListener("click", () => this.play(!this.playing));
    this.beforePart.addEventListener("click", () => this.jump(-1));
    this.afterPart.addEventListener("click", () => this.jump(1));
    this.rangePart.addEventListener("change", () => this.seek(this.state.at, { range: +this.rangePart.value, end: null }));
    this.pickPart.addEventListener("change", () => {
      const at = Date.parse(`${this.pickPart.value.trim().replace(" ", "T")}Z`);
      if (!Number.isNaN(at)) this.seek(Math.min(at, this.now()), { end: this.endFor(at) });
    });
    this.sliderPart.addEventListener("input", () => this.label(+this.sliderPart.value));
    this.sliderPart.addEventListener("change", () => this.seek(+this.sliderPart.value, {}));
    this.schemePart = part("scheme");
    this.schemePart.addEventListener("click", () => { const names = Object.keys(SCHEMES); this.paint(names[(names.indexOf(scheme()) + 1) % 3]); });
    this.paint(scheme());
    this.timer = setInterval(() => this.tick(), TICK_MS);
    this.$emit("ready");
  },
  beforeUnmount() { clearInterval(this.timer); },
  methods: {
    now() { return Date.now() + this.offset; },
    end() { return this.state.end ?? this.now(); },
    place() {
      const to = this.end(), min = 1000 * Math.floor((to - 1000 * this.state.range) / 1000);
      Object.assign(this.sliderPart, { min, max: to, value: this.state.at ?? to });
    },
    endFor(at) { // a moment before the slider's span is put into its middle
      const half = 500 * this.state.range;
      return at < this.now() - 2 * half ? at + half : null;
    },
    seek(at, changes) {
      if (at !== null && at >= this.now() - 1000 && !("range" in changes) && !this.isPause(at)) at = null;
      Object.assign(this.state, changes, { at });
      if (at === null) this.playing = false;
      this.waits = true;
      this.show();
      this.$emit("seek", { at: at === null ? null : Math.round(at), end: this.state.end, range: this.state.range, push: !this.playing });
    },
    disconnected() { // why the page may not show the present; empty while it is connected
      if (this.aliveMs === null) return "connecting …";
      if (!window.socket?.connected) return `connection lost at ${clock(this.aliveMs)} UTC`;
      this.aliveMs = this.now();
      return "";
    },
    isPause(at) { return this.state.at === null && document.activeElement === this.pausePart && at <= this.now(); },
    play(playing) {
      this.playing = playing && this.state.at !== null;
      this.show();
    },
    jump(by) {
      const at = this.state.at ?? this.now(), times = this.state.marks.map((mark) => mark[0]);
      const next = by < 0 ? Math.max(...times.filter((ms) => ms < at - 999)) : Math.min(...times.filter((ms) => ms > at + 999));
      if (Number.isFinite(next)) this.seek(next, {});
    },
    tick() {
      if (this.playing && !this.waits) {
        const next = this.state.at + TICK_MS * this.speedPart.value;
        this.seek(next < this.now() ? next : null, this.state.end !== null && next > this.state.end ? { end: this.endFor(next) } : {});
      } else this.show();
    },
    put(state) {
      this.offset = state.now - Date.now();
      this.waits = state.loading;
      this.aliveMs = this.now();
      if (document.activeElement === this.sliderPart && this.sliderPart.matches(":active")) state.at = this.state.at;
      this.state = state;
      this.show();
    },
    show() {
      const { at, range, marks, note } = this.state, to = this.end(), from = to - 1000 * range;
      this.$el.classList.toggle("ft-past", at !== null);
      this.$el.dataset.at = this.waits ? "" : at ?? "";
      this.livePart.setAttribute("aria-pressed", at === null && !this.disconnected());
      this.pausePart.hidden = at !== null;
      this.playPart.hidden = this.speedPart.hidden = at === null;
      this.playPart.textContent = this.playing ? "❙❙" : "▶";
      this.playPart.setAttribute("aria-label", this.playing ? "Stop playing" : "Play forward");
      this.rangePart.value = range;
      if (!this.sliderPart.matches(":active")) {
        this.place();
        this.label(at);
      }
      if (document.activeElement !== this.pickPart) this.pickPart.value = new Date(at ?? this.now()).toISOString().slice(0, 19).replace("T", " ");
      this.notePart.textContent = note;
      this.notePart.hidden = at === null || !note;
      const content = JSON.stringify([marks, Math.round(from / (10 * range)), range]);
      if (content === this.drawn) return;
      this.drawn = content;
      this.marksPart.replaceChildren(...marks.filter((mark) => mark[0] >= from && mark[0] <= to).map(([ms, kind, text]) => {
        const mark = document.createElement("i");
        mark.className = `ft-mark ft-${kind}`;
        mark.style.left = `${((ms - from) / (to - from)) * 100}%`;
        mark.title = `${clock(ms)} ${text}`;
        mark.addEventListener("click", () => this.seek(ms, {}));
        return mark;
      }));
    },
    label(at) {
      const lost = this.disconnected(), age = () => (this.waits ? "loading …" : `${ago((this.now() - at) / 1000)} ago`);
      const text = at === null ? lost || "now" : `${day(at) === day(this.now()) ? "" : `${day(at)} `}${clock(at)} UTC, ${lost || age()}`;
      this.textPart.textContent = text;
      this.sliderPart.setAttribute("aria-valuetext", text);
    },
    paint(name) {
      setScheme(name);
      const [sign, words] = SCHEMES[name];
      this.schemePart.textContent = sign;
      this.schemePart.title = `light or dark: ${words}`;
      this.schemePart.setAttribute("aria-label", `Light or dark: ${words}`);
    },
  },
};
