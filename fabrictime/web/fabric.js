// The fabric drawn on canvas: hosts with their NICs by rack below, leaves, spines and cores above, cables between.
// frame() takes `plan` (nodes, cables, NICs), `links` (states and queues of a plan's links) and `choice`.
// Emits `ready`, `ack` (drawn, the next frame may come), and `pick` ({kind, k, plan}) for a click on a cable, NIC, node or rack.
// Three layers: the topology, the present states and queues, and the element under the mouse. With many NICs the
// cables from a rack to a leaf are one bundle and a NIC is a cell; cables that are not UP are always drawn singly.
import { dark, ink, ramp, text, delay, percent, bytes, above, row, heading, stateInk, STATE_NAMES } from "fabrictime-draw";
import { canvasComponent, placeTip } from "fabrictime-draw/canvas.js";

const SINGLE = 160;   // NICs up to here have a drawn cable each
const PLAIN = 9000;   // cables up to here are drawn one by one
const LOW_BYTES = 1000;
const UP = 1, GREY = 2, FLAPPING = 3, DOWN = 4;
const DASH = { 2: [7, 4], 3: [3, 2.5], 4: [] };
const WIDTH = { 1: 1.3, 2: 2.6, 3: 4, 4: 3 };
const outline = (d) => `<path class="m" d="${d}" stroke="currentColor" stroke-width="1.4"/>`;
const SHAPES = { 2: outline("M15,1 L20,10 L10,10 Z"), 3: outline("M15,1 L20,6 L15,11 L10,6 Z"),
  4: outline("M15,1 A5,5 0 1 1 14.9,1 Z M12.5,3.5 L17.5,8.5 M17.5,3.5 L12.5,8.5") };
const PAD = { left: 14, right: 14, top: 30, bottom: 14 }, KEY_LINE = 18;

class Fabric {
  constructor(el) {
    this.el = el;
    this.layers = [...el.querySelectorAll("canvas")];
    [this.base, this.live, this.over] = this.layers.map((c) => c.getContext("2d"));
    this.tipBox = el.querySelector(".ft-map-tip");
    this.plan = null;
    this.links = null;
    this.choice = { cable: -1, node: null, lit: [] };
    this.metric = "state";
    this.view = { k: 1, x: 0, y: 0 };
    this.hovered = null;
    this.maxDepth = 1e5;
    this.draws = [];
  }

  // ------------------------------------------------------------------------------------------------ frames

  frame(f) {
    if (f.metric && f.metric !== this.metric) { this.metric = f.metric; this.stale = true; }
    if (f.plan) this.setPlan(f.plan);
    if (f.links && this.plan && f.links.of === this.plan.plan) this.setLinks(f.links);
    if (f.choice && this.plan && f.choice.of === this.plan.plan) this.choice = f.choice;
    this.paint();
    this.legend();
  }

  legend() {
    const key = this.el.querySelector(".ft-map-key"), range = this.range();
    const shown = `${this.metric}${range}${dark()}`;
    if (key.dataset.shown === shown) return;
    key.dataset.shown = shown;
    const swatch = (s) => `<span><svg width="30" height="12"><line x1="1" y1="6" x2="29" y2="6" stroke="${stateInk(s)}"` +
      ` stroke-width="${WIDTH[s] ?? 1.6}" stroke-dasharray="${s === 0 ? "2 3" : DASH[s] ?? ""}"/>${SHAPES[s] ?? ""}</svg>${STATE_NAMES[s]}</span>`;
    const ticks = this.metric === "load" ? [[0, "0%"], [0.5, "50%"], [1, "100%"]]
      : [[0, bytes(LOW_BYTES)], [0.5, bytes(Math.sqrt(LOW_BYTES * range))], [1, bytes(range)]];
    key.innerHTML = (this.metric === "state" ? [UP, GREY, FLAPPING, DOWN, 0] : [GREY, FLAPPING, DOWN]).map(swatch).join("") +
      (this.metric === "state" ? "" : `<span class="ft-map-ramp">${this.metric === "load" ? "time busy" : "mean depth"}<i style="background:linear-gradient(90deg,${ramp().join(",")})"></i>` +
        ticks.map(([, t]) => `<b>${t}</b>`).join("–") + "</span>");
    for (const shape of key.querySelectorAll("svg .m")) { shape.setAttribute("fill", ink().card); }
    this.size();
  }

  setPlan(plan) {
    this.plan = plan;
    this.links = null;
    this.choice = { cable: -1, node: null, lit: [] };
    this.hovered = null;
    this.nicOf = new Int32Array(plan.cables.length).fill(-1);
    plan.nics.forEach((n, i) => { if (n[4] >= 0) this.nicOf[n[4]] = i; });
    this.states = new Uint8Array(2 * plan.cables.length);
    this.depth = new Float64Array(2 * plan.cables.length).fill(-1);
    this.wait = new Float64Array(2 * plan.cables.length).fill(-1);
    this.load = new Float64Array(2 * plan.cables.length).fill(-1);
    this.nicStates = new Uint8Array(plan.nics.length);
    this.place();
    this.stale = true;
  }

  setLinks(links) {
    this.links = links;
    let changed = false;
    for (let i = 0; i < this.states.length; i++) {
      const state = links.states.charCodeAt(i) - 48;
      if ((state === 0) !== (this.states[i] === 0) || (state >= GREY) !== (this.states[i] >= GREY)) changed = true;
      this.states[i] = state;
    }
    for (let i = 0; i < this.nicStates.length; i++) this.nicStates[i] = links.nics.charCodeAt(i) - 48;
    this.depth.fill(-1); this.wait.fill(-1); this.load.fill(-1);
    const [at, depth, wait, load] = links.queues;
    let max = 0;
    for (let i = 0; i < at.length; i++) {
      this.depth[at[i]] = depth[i];
      this.wait[at[i]] = wait[i];
      this.load[at[i]] = load[i] < 0 ? -1 : load[i] / 1000;
      max = Math.max(max, depth[i]);
    }
    this.maxDepth = Math.max(this.maxDepth * (this.maxDepth > 4 * max ? 0.98 : 1), max, 1e5); // grows at once, shrinks slowly
    if (changed) this.stale = true;
  }

  // ------------------------------------------------------------------------------------------------ layout

  size() {
    const box = this.el.getBoundingClientRect();
    [this.width, this.height] = [Math.max(box.width, 50), Math.max(box.height, 50)];
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of this.layers) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    this.ratio = ratio;
    const lines = Math.max(1, Math.round(this.el.querySelector(".ft-map-key").offsetHeight / KEY_LINE));
    this.top = PAD.top + (lines > 1 ? lines * KEY_LINE : 0); // a legend of several lines stands above the map
    if (this.plan) { this.place(); this.stale = true; }
    this.paint();
  }

  place() {
    const { nodes, cables, nics, racks } = this.plan;
    const inner = this.width - PAD.left - PAD.right;
    const tiers = Math.max(0, ...nodes.map((n) => n[1]));
    const tall = this.height - this.top - PAD.bottom;
    const perHost = new Map();
    nics.forEach((n, i) => { if (!perHost.has(n[1])) perHost.set(n[1], []); perHost.get(n[1]).push(i); });
    const inRack = racks.map(() => []);
    for (const [host, list] of perHost) inRack[nics[list[0]][2]].push(host);
    const k = Math.max(1, ...[...perHost.values()].map((l) => l.length));
    const gap = racks.length > 60 ? 3 : racks.length > 12 ? 8 : 16;
    const space = (tiers > 0 ? 0.3 : 0.8) * tall - 30;
    let best = { s: 0, rows: 1 };
    for (let rows = 1; rows <= 24; rows++) {
      const columns = inRack.reduce((sum, hosts) => sum + Math.ceil(hosts.length / rows), 0);
      const s = Math.min((inner - gap * racks.length) / Math.max(columns, 1) / 1.2, space / (rows * (k + 0.6)), 30);
      if (s > best.s * 1.02 && best.s < 15) best = { s, rows }; // one row if its cells are visible
    }
    const s = best.s, pitch = s * 1.2;
    this.cell = s;
    const blockTall = best.rows * (k + 0.6) * s;
    const bottom = this.height - PAD.bottom - (this.named(nics.length, s) ? 15 : 0) - 15;
    const top = bottom - blockTall;
    const wide = inRack.reduce((sum, hosts) => sum + Math.ceil(hosts.length / best.rows) * pitch, 0) + gap * (racks.length - 1);
    const spread = Math.max(0, (inner - wide) / Math.max(racks.length, 1)); // each rack is centred in its share
    let x = PAD.left + spread / 2;
    this.nicXY = new Float64Array(2 * nics.length);
    this.hosts = [];
    this.blocks = [];
    this.rackAt = new Float64Array(racks.length);
    inRack.forEach((hosts, r) => {
      const columns = Math.ceil(hosts.length / best.rows);
      const block = { x: x - 3, y: top - 4, w: Math.max(columns * pitch - (pitch - s), 2) + 6, h: blockTall + 6, name: racks[r], hosts: hosts.length };
      hosts.forEach((host, i) => {
        const column = i % columns, line = Math.floor(i / columns);
        const hx = x + column * pitch, hy = top + line * (k + 0.6) * s;
        const list = perHost.get(host);
        this.hosts.push({ x: hx, y: hy, w: s, h: list.length * s, node: host });
        list.forEach((nic, j) => { this.nicXY[2 * nic] = hx + s / 2; this.nicXY[2 * nic + 1] = hy + j * s + s / 2; });
      });
      this.rackAt[r] = block.x + block.w / 2;
      this.blocks.push(block);
      x += columns * pitch + gap + spread;
    });

    this.at = nodes.map(() => null);
    this.tierY = [];
    const under = new Map();
    nics.forEach((n) => { if (n[5] >= 0) { const u = under.get(n[5]) ?? [0, 0]; under.set(n[5], [u[0] + this.rackAt[n[2]], u[1] + 1]); } });
    for (let tier = 1; tier <= tiers; tier++) {
      const members = nodes.map((n, i) => i).filter((i) => nodes[i][1] === tier);
      if (tier === 1) members.sort((a, b) => mean(under.get(a)) - mean(under.get(b)) || a - b);
      const leafY = top - 34 - (top - this.top) * (tiers > 1 ? 0.22 : 0.45);
      const y = tiers > 1 ? leafY + ((this.top + 8 - leafY) * (tier - 1)) / (tiers - 1) : leafY;
      const step = inner / members.length;
      this.tierY[tier] = { y, step, count: members.length };
      members.forEach((node, i) => { this.at[node] = { x: PAD.left + step * (i + 0.5), y, w: Math.max(3, Math.min(66, step * 0.9)), h: step < 14 ? 8 : 18, tier }; });
    }
    for (const host of this.hosts) this.at[host.node] = { x: host.x + host.w / 2, y: host.y + host.h / 2, w: host.w, h: host.h, tier: 0 };

    const many = nics.length > SINGLE;
    this.lines = new Float64Array(4 * cables.length);
    this.bundles = [];
    this.bundleOf = new Int32Array(cables.length).fill(-1);
    const bundles = new Map();
    cables.forEach(([a, , b], i) => {
      const low = this.at[a], high = this.at[b], nic = this.nicOf[i];
      if (!low || !high) { this.lines.fill(NaN, 4 * i, 4 * i + 4); return; }
      if (nic >= 0) {
        this.lines.set([this.nicXY[2 * nic], this.nicXY[2 * nic + 1] - s / 2, high.x, high.y + high.h / 2], 4 * i);
        if (many) {
          const r = this.plan.nics[nic][2], key = `${r}/${b}`;
          if (!bundles.has(key)) { bundles.set(key, this.bundles.length); this.bundles.push({ rack: r, leaf: b, cables: [] }); }
          this.bundleOf[i] = bundles.get(key);
          this.bundles[this.bundleOf[i]].cables.push(i);
        }
      } else this.lines.set([low.x, low.y - low.h / 2, high.x, high.y + high.h / 2], 4 * i);
    });
    const byRack = racks.map(() => []);
    this.bundles.forEach((b) => byRack[b.rack].push(b));
    byRack.forEach((list, r) => {
      list.sort((p, q) => this.at[p.leaf].x - this.at[q.leaf].x);
      list.forEach((b, i) => {
        const block = this.blocks[r], leaf = this.at[b.leaf];
        b.line = [block.x + (block.w * (i + 0.5)) / list.length, block.y, leaf.x, leaf.y + leaf.h / 2];
      });
    });
    this.plain = cables.length - this.bundles.reduce((n, b) => n + b.cables.length, 0);
  }

  named(nics, s) { return s >= 15 || (nics <= 40 && s >= 10); }

  // ------------------------------------------------------------------------------------------------ colour

  level(i) { // 0 to 1 of a directed link by the metric; -1: unknown
    if (this.metric === "load") return this.load[i];
    const depth = this.depth[i];
    if (depth < 0) return -1;
    return depth < LOW_BYTES ? 0 : Math.min(1, Math.log(depth / LOW_BYTES) / Math.log(this.range() / LOW_BYTES));
  }

  range() { return above(this.maxDepth); }

  tone(level) {
    const colors = ramp();
    return colors[Math.max(0, Math.min(colors.length - 1, Math.round(level * (colors.length - 1))))];
  }

  worst(i) { return Math.max(this.states[2 * i], this.states[2 * i + 1]); }

  // -------------------------------------------------------------------------------------------------- draw

  paint() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.plan || !this.width) return;
      const begin = performance.now();
      if (this.stale) { this.drawBase(); this.stale = false; }
      this.drawLive();
      this.drawOver();
      this.draws.push(performance.now() - begin);
      if (this.draws.length > 600) this.draws.shift();
    });
  }

  begin(g) {
    const { k, x, y } = this.view;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, g.canvas.width, g.canvas.height);
    g.setTransform(this.ratio * k, 0, 0, this.ratio * k, this.ratio * x, this.ratio * y);
  }

  drawBase() {
    const g = this.base, c = ink(), { nodes, nics } = this.plan, k = this.view.k;
    this.begin(g);
    g.font = `${10.5 / k}px system-ui, sans-serif`;
    g.textBaseline = "middle";
    for (const block of this.blocks) {
      g.fillStyle = c.none;
      g.strokeStyle = c.line;
      g.lineWidth = 1 / k;
      g.beginPath(); g.roundRect(block.x, block.y, block.w, block.h, Math.min(4, block.w / 3)); g.fill(); g.stroke();
    }
    const calm = (i) => !this.states[2 * i] && !this.states[2 * i + 1];
    const thin = Math.min(1, Math.max(0.16, 70 / Math.sqrt(this.plain || 1) / 8));
    if (this.plain <= PLAIN) {
      for (const unknown of [true, false]) {
        g.beginPath();
        for (let i = 0; i < this.plan.cables.length; i++)
          if (this.bundleOf[i] < 0 && calm(i) === unknown && this.worst(i) < GREY && !Number.isNaN(this.lines[4 * i])) line(g, this.lines, 4 * i);
        g.setLineDash(unknown ? [2 / k, 3 / k] : []);
        g.strokeStyle = unknown || this.metric !== "state" ? c.grey : stateInk(UP);
        g.globalAlpha = unknown || this.metric !== "state" ? 0.6 * thin : thin;
        g.lineWidth = (this.plain < 400 ? 1.3 : 1) / k;
        g.stroke();
      }
    } else this.drawBands(g, c);
    for (const b of this.bundles) {
      const unknown = b.cables.every(calm);
      g.setLineDash(unknown ? [2 / k, 3 / k] : []);
      g.globalAlpha = 0.6;
      g.strokeStyle = unknown || this.metric !== "state" ? c.grey : stateInk(UP);
      g.lineWidth = Math.min(5, 1 + b.cables.length / 16) / Math.sqrt(k);
      g.beginPath(); line(g, b.line, 0); g.stroke();
    }
    g.setLineDash([]);
    g.globalAlpha = 1;
    nodes.forEach((node, i) => {
      const p = this.at[i];
      if (!p || p.tier === 0) return;
      g.fillStyle = c.node; g.strokeStyle = c.grey; g.lineWidth = 1 / k;
      g.beginPath(); g.roundRect(p.x - p.w / 2, p.y - p.h / 2, p.w, p.h, 3); g.fill(); g.stroke();
    });
    g.textAlign = "center";
    this.tierY.forEach((tier, t) => { if (tier) this.nameTier(g, c, t, tier); });
    g.fillStyle = c.dim;
    if (this.named(nics.length, this.cell * k)) {
      const longest = Math.max(0, ...this.hosts.map((host) => nodes[host.node][0].length));
      const every = Math.ceil((5.6 * longest + 4) / (this.cell * 1.2 * k));
      this.hosts.forEach((host, i) => { if (i % every === 0) g.fillText(nodes[host.node][0], host.x + host.w / 2, host.y + host.h + 8 / k); });
    }
    let last = -Infinity;
    for (const block of this.blocks) {
      const name = block.name || "no rack known";
      const half = g.measureText(name).width / 2, x = block.x + block.w / 2;
      if (x - half < last + 6 / k) continue;
      g.fillText(name, x, block.y + block.h + 9 / k);
      last = x + half;
    }
    g.textAlign = "left";
    g.lineJoin = "round";
    const label = (content, x, y) => { // with a rim of the background, as it covers lines
      g.strokeStyle = c.card; g.lineWidth = 4 / k; g.strokeText(content, x, y); g.fillText(content, x, y);
    };
    this.tierY.forEach((tier, t) => {
      if (!tier) return;
      const name = ["", "leaves", "spines", "cores"][t] ?? `tier ${t}`;
      label(`${tier.count} ${tier.count === 1 ? name.replace("leaves", "leaf").replace(/s$/, "") : name}`, PAD.left, tier.y - (tier.step < 60 ? 31 : 24) / k);
    });
    const hosts = this.hosts.length;
    if (hosts) label(`${hosts.toLocaleString("en")} hosts, ${nics.length.toLocaleString("en")} NICs`, PAD.left, this.blocks[0].y - 10 / k);
  }

  nameTier(g, c, t, tier) { // in the boxes where all names fit, else the name of every n-th above it
    const k = this.view.k, members = this.plan.nodes.flatMap((node, i) => (node[1] === t && this.at[i] ? [[node[0], this.at[i]]] : []));
    const longest = Math.max(0, ...members.map(([name]) => name.length)), wide = (5.6 * longest + 4) / k;
    const fits = members.every(([, p]) => p.w >= wide), every = fits ? 1 : Math.ceil((wide + 4 / k) / tier.step);
    members.sort((a, b) => a[1].x - b[1].x).forEach(([name, p], i) => {
      if (i % every) return;
      const y = fits ? p.y : p.y - p.h / 2 - 7 / k;
      g.fillStyle = fits ? c.text : c.dim;
      if (!fits) { g.strokeStyle = c.card; g.lineWidth = 4 / k; g.lineJoin = "round"; g.strokeText(name, p.x, y); }
      g.fillText(name, p.x, y);
    });
  }

  drawBands(g, c) { // too many cables to distinguish: an area between the tiers
    g.globalAlpha = 0.12;
    g.fillStyle = stateInk(UP);
    for (let t = 1; t + 1 < this.tierY.length; t++) {
      const [low, high] = [this.tierY[t].y - 9, this.tierY[t + 1].y + 9];
      g.fillRect(PAD.left, high, this.width - PAD.left - PAD.right, low - high);
    }
    g.globalAlpha = 1;
  }

  drawLive() {
    const g = this.live, c = ink(), { cables, nics } = this.plan, k = this.view.k;
    this.begin(g);
    if (this.cell * k >= 1.5) this.drawNics(g, c);
    else this.drawFolded(g);
    if (this.metric !== "state") this.drawLevels(g);
    if (this.choice.lit.length) {
      g.beginPath();
      for (const at of this.choice.lit) line(g, this.lines, 4 * (at >> 1));
      g.strokeStyle = c.lit; g.lineWidth = 3.2 / k; g.globalAlpha = 0.75; g.stroke(); g.globalAlpha = 1;
    }
    if (this.choice.cable >= 0 && !Number.isNaN(this.lines[4 * this.choice.cable])) this.emphasise(g, this.choice.cable, 0.95);
    const marks = [];
    for (const state of [0, UP, GREY, FLAPPING, DOWN]) { // the halves that are UP too: no line lies beneath these cables
      g.strokeStyle = stateInk(state);
      g.lineWidth = (WIDTH[state] ?? 1) / k;
      g.setLineDash((DASH[state] ?? []).map((v) => v / k));
      g.beginPath();
      let any = false;
      for (let i = 0; i < cables.length; i++) {
        if (this.worst(i) < GREY || Number.isNaN(this.lines[4 * i])) continue;
        const [up, down] = [this.states[2 * i], this.states[2 * i + 1]];
        if (up === state) { half(g, this.lines, 4 * i, true); any = true; }
        if (down === state) { half(g, this.lines, 4 * i, false); any = true; }
        if (state >= GREY && Math.max(up, down) === state) marks.push([i, state, up === down ? 0.5 : up === state ? 0.32 : 0.68]);
      }
      if (any) g.stroke();
    }
    g.setLineDash([]);
    for (const [i, state, share] of marks.slice(-4000)) this.mark(g, this.lines, 4 * i, state, share);
    const chosen = this.choice.node === null ? -1 : this.plan.nodes.findIndex((n) => n[0] === this.choice.node);
    if (chosen >= 0 && this.at[chosen]) this.ring(g, this.at[chosen]);
  }

  drawNics(g, c) {
    const s = this.cell, { nics } = this.plan, inset = s > 6 ? 1 : 0, paths = new Map();
    for (let i = 0; i < nics.length; i++) {
      const cable = nics[i][4];
      const state = this.nicState(i);
      let fill = state === UP ? stateInk(UP) : state === 0 ? c.line : stateInk(state);
      if (this.metric !== "state" && state < GREY && cable >= 0) {
        const level = Math.max(this.level(2 * cable), this.level(2 * cable + 1));
        fill = level > 0 ? this.tone(level) : c.line;
      }
      if (!paths.has(fill)) paths.set(fill, new Path2D());
      paths.get(fill).rect(this.nicXY[2 * i] - s / 2 + inset / 2, this.nicXY[2 * i + 1] - s / 2 + inset / 2, s - inset, s - inset);
    }
    for (const [fill, path] of paths) { g.globalAlpha = fill === stateInk(UP) ? 0.55 : 1; g.fillStyle = fill; g.fill(path); }
    g.globalAlpha = 1;
  }

  nicState(i) {
    const cable = this.plan.nics[i][4];
    return Math.max(this.nicStates[i] >= GREY ? this.nicStates[i] : 0, cable < 0 ? 0 : this.worst(cable));
  }

  drawFolded(g) { // NICs too small to see: a rack has the colour of its worst NIC
    const worst = new Uint8Array(this.blocks.length);
    this.plan.nics.forEach((n, i) => { worst[n[2]] = Math.max(worst[n[2]], this.nicState(i)); });
    this.blocks.forEach((b, r) => { g.fillStyle = stateInk(worst[r]); g.globalAlpha = worst[r] > UP ? 0.95 : 0.4; g.fillRect(b.x, b.y, b.w, b.h); });
    g.globalAlpha = 1;
  }

  drawLevels(g) {
    const k = this.view.k, steps = ramp().length, buckets = Array.from({ length: steps }, () => []);
    for (let at = 0; at < 2 * this.plan.cables.length; at++) {
      const level = this.level(at);
      if (level > 0 && !Number.isNaN(this.lines[4 * (at >> 1)])) buckets[Math.min(steps - 1, Math.round(level * (steps - 1)))].push(at);
    }
    buckets.forEach((list, b) => {
      if (!list.length) return;
      g.beginPath();
      for (const at of list) {
        if (this.bundleOf[at >> 1] >= 0 && b < steps * 0.5) continue; // drawn as its bundle and as a cell
        half(g, this.lines, 4 * (at >> 1), at % 2 === 0);
      }
      g.strokeStyle = ramp()[b];
      g.lineWidth = (0.8 + (4 * b) / (steps - 1)) / k;
      g.globalAlpha = 0.35 + (0.65 * b) / (steps - 1);
      g.stroke();
    });
    g.globalAlpha = 1;
  }

  mark(g, lines, at, state, share) {
    const k = this.view.k, x = lines[at] + (lines[at + 2] - lines[at]) * share, y = lines[at + 1] + (lines[at + 3] - lines[at + 1]) * share;
    const r = 5.5 / k;
    g.fillStyle = ink().card; g.strokeStyle = stateInk(state); g.lineWidth = 1.6 / k;
    g.beginPath();
    if (state === GREY) { g.moveTo(x, y - r); g.lineTo(x + r, y + r * 0.8); g.lineTo(x - r, y + r * 0.8); g.closePath(); }
    else if (state === FLAPPING) { g.moveTo(x, y - r); g.lineTo(x + r, y); g.lineTo(x, y + r); g.lineTo(x - r, y); g.closePath(); }
    else g.arc(x, y, r, 0, 7);
    g.fill(); g.stroke();
    if (state === DOWN) { g.beginPath(); g.moveTo(x - r / 2, y - r / 2); g.lineTo(x + r / 2, y + r / 2); g.moveTo(x + r / 2, y - r / 2); g.lineTo(x - r / 2, y + r / 2); g.stroke(); }
  }

  emphasise(g, i, alpha) {
    const k = this.view.k, c = ink();
    g.globalAlpha = alpha * 0.4; g.strokeStyle = c.lit; g.lineWidth = 9 / k;
    g.beginPath(); line(g, this.lines, 4 * i); g.stroke();
    g.globalAlpha = 1;
    if (this.metric !== "state" || this.worst(i) >= GREY) return; // its own colours show more
    g.globalAlpha = alpha; g.lineWidth = 2 / k; g.strokeStyle = c.text;
    g.beginPath(); line(g, this.lines, 4 * i); g.stroke();
    g.globalAlpha = 1;
  }

  ring(g, p) {
    g.strokeStyle = ink().lit; g.lineWidth = 2.5 / this.view.k;
    g.beginPath(); g.roundRect(p.x - p.w / 2 - 2, p.y - p.h / 2 - 2, p.w + 4, p.h + 4, 4); g.stroke();
  }

  drawOver() {
    const g = this.over, hit = this.hovered;
    this.begin(g);
    if (!hit) return;
    if (hit.kind === "cable") this.emphasise(g, hit.k, 0.8);
    if (hit.kind === "bundle") { g.strokeStyle = ink().lit; g.lineWidth = 5 / this.view.k; g.globalAlpha = 0.7; g.beginPath(); line(g, this.bundles[hit.k].line, 0); g.stroke(); g.globalAlpha = 1; }
    if (hit.kind === "node") this.ring(g, this.at[hit.k]);
    if (hit.kind === "rack") { const b = this.blocks[hit.k]; this.ring(g, { x: b.x + b.w / 2, y: b.y + b.h / 2, w: b.w, h: b.h }); }
    if (hit.kind === "nic") { const s = this.cell, x = this.nicXY[2 * hit.k], y = this.nicXY[2 * hit.k + 1]; this.ring(g, { x, y, w: s, h: s }); if (this.plan.nics[hit.k][4] >= 0) this.emphasise(g, this.plan.nics[hit.k][4], 0.8); }
  }

  // ------------------------------------------------------------------------------------------------- mouse

  find(px, py) {
    if (!this.plan) return null;
    const { k, x, y } = this.view, mx = (px - x) / k, my = (py - y) / k, s = this.cell;
    for (let i = 0; i < this.plan.nodes.length; i++) {
      const p = this.at[i];
      if (p && p.tier > 0 && Math.abs(mx - p.x) <= Math.max(p.w / 2, 4 / k) && Math.abs(my - p.y) <= p.h / 2 + 2 / k) return { kind: "node", k: i };
    }
    if (s * k >= 3) for (let i = 0; i < this.plan.nics.length; i++)
      if (Math.abs(mx - this.nicXY[2 * i]) <= s / 2 && Math.abs(my - this.nicXY[2 * i + 1]) <= s / 2) return { kind: "nic", k: i };
    let best = null, nearest = 7 / k;
    for (let i = 0; i < this.plan.cables.length; i++) {
      const bad = this.worst(i) >= GREY || this.choice.cable === i;
      if (this.bundleOf[i] >= 0 && !bad) continue;
      const d = distance(mx, my, this.lines, 4 * i) - (bad ? 3 / k : 0); // a cable that is not UP is easier to hit
      if (d < nearest) { nearest = d; best = { kind: "cable", k: i }; }
    }
    for (let i = 0; i < this.bundles.length; i++) {
      const d = distance(mx, my, this.bundles[i].line, 0);
      if (d < nearest) { nearest = d; best = { kind: "bundle", k: i }; }
    }
    if (best) return best;
    const rack = this.blocks.findIndex((b) => mx >= b.x && mx <= b.x + b.w && my >= b.y && my <= b.y + b.h);
    return rack >= 0 && this.plan.racks[rack] ? { kind: "rack", k: rack } : null;
  }

  hover(px, py) {
    const hit = px === null ? null : this.find(px, py);
    const same = hit?.kind === this.hovered?.kind && hit?.k === this.hovered?.k;
    this.hovered = hit;
    this.el.style.cursor = hit && hit.kind !== "bundle" ? "pointer" : "grab";
    if (!same) this.paint();
    if (!hit) { this.tipBox.style.display = "none"; return; }
    placeTip(this.tipBox, this.tip(hit), px, py, this.width, this.height);
  }

  cableName(i) {
    const [a, pa, b, pb] = this.plan.cables[i], { nodes } = this.plan;
    return `${text(nodes[a][0])}:${text(pa)} ⇄ ${text(nodes[b][0])}:${text(pb)}`;
  }

  tip(hit) {
    const { nodes, nics, racks } = this.plan;
    if (hit.kind === "cable") return heading(this.cableName(hit.k)) + this.directions(hit.k) + "</table>";
    if (hit.kind === "bundle") {
      const b = this.bundles[hit.k];
      return heading(`${text(racks[b.rack])} – ${text(nodes[b.leaf][0])}`) + row("cables", b.cables.length) + this.counts(b.cables) + "</table>";
    }
    if (hit.kind === "rack") {
      const cables = nics.flatMap((n) => (n[2] === hit.k && n[4] >= 0 ? [n[4]] : []));
      return heading(`rack ${text(racks[hit.k])}`) + row("hosts", this.blocks[hit.k].hosts) + row("NICs with a cable", cables.length) + this.counts(cables) + "</table>";
    }
    if (hit.kind === "nic") {
      const [name, , rack, rail, cable] = nics[hit.k];
      return heading(text(name)) + row("rack", text(racks[rack] || "–")) + (rail < 0 ? "" : row("rail", rail)) +
        (cable < 0 ? row("cable", "not traced yet") : row("cable", this.cableName(cable)) + this.directions(cable)) + "</table>";
    }
    const cables = this.plan.cables.flatMap((c, i) => (c[0] === hit.k || c[2] === hit.k ? [i] : []));
    return heading(text(nodes[hit.k][0])) + row("cables", cables.length) + this.counts(cables) + "</table>";
  }

  counts(cables) {
    const count = new Array(5).fill(0);
    let [max, at] = [0, -1];
    for (const i of cables) {
      count[this.worst(i)]++;
      for (const each of [2 * i, 2 * i + 1]) if (this.depth[each] > max) [max, at] = [this.depth[each], each];
    }
    return count.map((n, s) => (n ? row(STATE_NAMES[s], n) : "")).reverse().join("") +
      (at < 0 ? "" : row("deepest queue", `${bytes(max)}, ${delay(this.wait[at])}`));
  }

  directions(i) {
    const [a, , b] = this.plan.cables[i], { nodes } = this.plan;
    return [[2 * i, a, b], [2 * i + 1, b, a]].map(([at, from, to]) =>
      row(`${text(nodes[from][0])} → ${text(nodes[to][0])}`, STATE_NAMES[this.states[at]] +
        (this.depth[at] < 0 ? "" : ` · ${bytes(this.depth[at])}, ${delay(this.wait[at])}`) +
        (this.load[at] < 0 ? "" : ` · ${percent(this.load[at])}`))).join("");
  }

  zoom(px, py, factor) {
    const { k, x, y } = this.view, next = Math.max(1, Math.min(24, k * factor));
    this.view = { k: next, x: px - ((px - x) * next) / k, y: py - ((py - y) * next) / k };
    this.moved();
  }

  moved() {
    const v = this.view;
    v.x = Math.min(0, Math.max(v.x, this.width * (1 - v.k)));
    v.y = Math.min(0, Math.max(v.y, this.height * (1 - v.k)));
    this.el.style.touchAction = v.k > 1 ? "none" : "pan-y"; // the whole drawing fits: a finger scrolls the page
    this.stale = true;
    this.paint();
  }

  spot(cable, share = 0.5) { // position of a cable on the screen, for tests
    const at = 4 * cable, { k, x, y } = this.view, l = this.lines;
    return [(l[at] + (l[at + 2] - l[at]) * share) * k + x, (l[at + 1] + (l[at + 3] - l[at + 1]) * share) * k + y];
  }
}

const mean = (u) => (u ? u[0] / u[1] : Infinity);
function line(g, l, at) { g.moveTo(l[at], l[at + 1]); g.lineTo(l[at + 2], l[at + 3]); }
function half(g, l, at, lower) {
  const x = (l[at] + l[at + 2]) / 2, y = (l[at + 1] + l[at + 3]) / 2;
  if (lower) g.moveTo(l[at], l[at + 1]); else g.moveTo(l[at + 2], l[at + 3]);
  g.lineTo(x, y);
}
function distance(x, y, l, at) {
  const dx = l[at + 2] - l[at], dy = l[at + 3] - l[at + 1], span = dx * dx + dy * dy;
  const t = span ? Math.max(0, Math.min(1, ((x - l[at]) * dx + (y - l[at + 1]) * dy) / span)) : 0;
  return Math.hypot(x - l[at] - t * dx, y - l[at + 1] - t * dy);
}

function connect(el, drawer, at, pick) {
  let drag = null;
  const fingers = new Map(), spread = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
  const pinch = (e, [x, y]) => { // two fingers zoom about their middle; one finger scrolls the page until then
    const before = spread();
    fingers.set(e.pointerId, [x, y]);
    const [a, b] = [...fingers.values()];
    if (before > 0) drawer.zoom((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, spread() / before);
  };
  el.addEventListener("pointermove", (e) => {
    const [x, y] = at(e);
    if (fingers.size === 2 && fingers.has(e.pointerId)) { drag = null; pinch(e, [x, y]); return; }
    if (drag) {
      if (!drag.far && Math.hypot(x - drag.x, y - drag.y) < 4) return;
      drag.far = true;
      Object.assign(drawer.view, { x: drag.vx + x - drag.x, y: drag.vy + y - drag.y });
      drawer.moved();
      drawer.hover(null);
    } else drawer.hover(x, y);
  });
  for (const type of ["pointerup", "pointercancel", "pointerleave"]) el.addEventListener(type, (e) => fingers.delete(e.pointerId));
  el.addEventListener("pointerdown", (e) => { if (e.pointerType === "touch") fingers.set(e.pointerId, at(e)); });
  el.addEventListener("pointerdown", (e) => { const [x, y] = at(e); drag = { x, y, vx: drawer.view.x, vy: drawer.view.y, far: false }; });
  el.addEventListener("pointerup", (e) => {
    if (drag && !drag.far) {
      const hit = drawer.find(...at(e));
      if (hit?.kind === "bundle") { const [x, y] = at(e); drawer.zoom(x, y, 2); }
      else pick(hit === null ? { kind: "none", k: -1, plan: drawer.plan?.plan ?? 0 } : { ...hit, plan: drawer.plan.plan });
    }
    drag = null;
  });
  el.addEventListener("pointerleave", () => { drag = null; drawer.hover(null); });
  el.addEventListener("wheel", (e) => { e.preventDefault(); drawer.zoom(...at(e), Math.exp(-e.deltaY / 400)); }, { passive: false });
  el.addEventListener("dblclick", () => { drawer.view = { k: 1, x: 0, y: 0 }; drawer.moved(); });
}

export default canvasComponent(
  `<div class="ft-map" role="img" :aria-label="label"><canvas></canvas><canvas></canvas><canvas></canvas><div class="ft-map-key"></div><div class="ft-map-tip"></div></div>`,
  Fabric, connect, (drawer) => { drawer.stale = true; drawer.paint(); drawer.legend(); },
);
