// A table whose rows arrive through put(), so that a new row costs its own cells only. NiceGUI's own table is
// rendered again with every change of the page.
// put({rows}), each [key, cells]; a cell is a text or a list of parts [classes, text, title, values]. Values are
// drawn as a line in place of the text; a string in their place is an address, and the text becomes a link.
// A line is as high as its values differ, but a difference of a twentieth is no more than a quarter of its height.
// `first`: the rows to show once it is mounted. Emits `ready`, and `pick` with the key of a clicked row (or Enter).
const SPARK = { width: 110, height: 24 };

function spark(values) {
  const high = Math.max(...values), span = Math.max(high - Math.min(...values), 0.2 * high) || 1;
  const low = (high + Math.min(...values) - span) / 2;
  const at = (v, i) => `${((i * (SPARK.width - 4)) / Math.max(1, values.length - 1) + 2).toFixed(1)},${(SPARK.height - 3 - ((v - low) * (SPARK.height - 6)) / span).toFixed(1)}`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries(SPARK)) svg.setAttribute(name, value);
  const line = svg.appendChild(document.createElementNS(svg.namespaceURI, "polyline"));
  line.setAttribute("points", values.map(at).join(" "));
  return svg;
}

function fill(td, cell) {
  if (typeof cell === "string") { td.textContent = cell; return; }
  td.replaceChildren(...cell.map(([classes, text, title, values]) => {
    const address = typeof values === "string" ? values : "", part = document.createElement(address ? "a" : "div");
    part.className = classes;
    if (address) { part.href = address; part.addEventListener("click", (e) => e.stopPropagation()); }
    if (!address && values?.length > 1) part.append(spark(values));
    else part.textContent = text;
    if (title) part.title = title;
    return part;
  }));
}

export default {
  template: `<div class="ft-rows" :tabindex="picks ? null : 0" hidden><table><thead v-if="head"><tr><th v-for="c in columns" :style="{textAlign: c[1]}">{{ c[0] }}</th></tr></thead><tbody></tbody></table></div>`,
  props: { columns: Array, head: Boolean, picks: Boolean, first: Object },
  emits: ["ready", "pick"],
  mounted() {
    this.known = new Map();
    if (this.first) this.put(this.first);
    this.$emit("ready");
  },
  methods: {
    put({ rows }) {
      const body = this.$el.querySelector("tbody"), keys = new Set(rows.map((row) => row[0]));
      for (const [key, row] of this.known) if (!keys.has(key)) { row.tr.remove(); this.known.delete(key); }
      let at = body.firstChild;
      for (const [key, cells] of rows) {
        let row = this.known.get(key);
        if (!row) this.known.set(key, (row = this.made(key)));
        cells.forEach((cell, i) => {
          const content = typeof cell === "string" ? cell : JSON.stringify(cell);
          if (row.shown[i] !== content) { row.shown[i] = content; fill(row.tr.cells[i], cell); }
        });
        if (row.tr === at) at = at.nextSibling;
        else body.insertBefore(row.tr, at);
      }
      this.$el.hidden = !rows.length;
    },
    made(key) {
      const tr = document.createElement("tr");
      for (const [, align] of this.columns) tr.insertCell().style.textAlign = align;
      if (this.picks) {
        tr.tabIndex = 0;
        tr.addEventListener("click", () => this.$emit("pick", key));
        tr.addEventListener("keydown", (e) => { if (e.key === "Enter") this.$emit("pick", key); });
      }
      return { tr, shown: [] };
    },
  },
};
