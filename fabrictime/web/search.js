// A search field with a list of results below it. `/` anywhere on the page puts the cursor into it, the arrow keys
// move in the list, Enter opens the chosen result, Escape closes the list.
// put({query, rows}), each row [heading, name, detail, address]; emits `ready`, and `query` with the text.
const DELAY_MS = 60;  // shortest time between two queries

function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export default {
  template: `<div class="ft-search" role="search"><input type="search" class="ft-search-input" placeholder="Search: host, NIC, link, job   /" aria-label="Search hosts, NICs, links, switches, jobs, flows and alerts" role="combobox" aria-expanded="false" aria-autocomplete="list" autocomplete="off" spellcheck="false" maxlength="200" data-testid="search" :aria-controls="'ft-found-' + id"><div class="ft-found" role="listbox" aria-label="Search results" hidden data-testid="search-results" :id="'ft-found-' + id"></div></div>`,
  emits: ["ready", "query"],
  data: () => ({ id: Math.random().toString(36).slice(2) }),
  mounted() {
    this.input = this.$el.querySelector("input");
    this.list = this.$el.querySelector(".ft-found");
    this.query = null; this.rows = []; this.active = 0; this.enters = false;
    this.askedMs = 0;
    this.input.addEventListener("input", () => this.typed());
    this.input.addEventListener("focus", () => { if (this.input.value.trim()) this.typed(); });
    this.input.addEventListener("keydown", (e) => this.key(e));
    this.$el.addEventListener("focusout", (e) => { if (!this.$el.contains(e.relatedTarget)) this.close(); });
    this.slash = (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || isTyping(e.target)) return;
      e.preventDefault();
      this.input.focus();
      this.input.select();
    };
    document.addEventListener("keydown", this.slash);
    this.$emit("ready");
  },
  beforeUnmount() { document.removeEventListener("keydown", this.slash); },
  methods: {
    text() { return this.input.value.trim(); },
    typed() {
      clearTimeout(this.timer);
      this.enters = false;
      if (!this.text()) this.close();
      else if (this.text() === this.query) this.show();
      else this.timer = setTimeout(() => this.ask(), this.askedMs + DELAY_MS - performance.now());
    },
    ask() {
      this.askedMs = performance.now();
      this.$emit("query", this.text());
    },
    key(e) {
      if (e.key === "Escape") { this.input.value = ""; this.close(); this.input.blur(); }
      else if (e.key === "Enter") this.enter();
      else if (e.key === "ArrowDown" || e.key === "ArrowUp") { e.preventDefault(); this.move(e.key === "ArrowDown" ? 1 : -1); }
    },
    enter() {
      if (!this.text()) return;
      if (this.text() !== this.query) { this.enters = true; return; }  // open it once the results are there
      const link = this.links()[this.active];
      if (link) link.click();
    },
    links() { return [...this.list.querySelectorAll("a")]; },
    move(by) {
      const links = this.links();
      if (links.length) this.mark((this.active + by + links.length) % links.length);
    },
    mark(active) {
      this.active = active;
      this.links().forEach((link, i) => {
        link.setAttribute("aria-selected", i === active);
        if (i === active) { link.scrollIntoView({ block: "nearest" }); this.input.setAttribute("aria-activedescendant", link.id); }
      });
    },
    put({ query, rows }) {
      if (query === null) return;
      this.query = query; this.rows = rows;
      if (this.text() !== query || document.activeElement !== this.input) return;
      this.show();
      if (this.enters) this.enter();
    },
    show() {
      const parts = [];
      let heading = "";
      this.rows.forEach(([kind, name, detail, address], i) => {
        if (kind !== heading) { parts.push(this.made("div", "ft-found-kind", kind)); heading = kind; }
        const link = this.made("a", "ft-found-row", "");
        link.href = address; link.id = `ft-found-${this.id}-${i}`; link.tabIndex = -1;
        link.setAttribute("role", "option");
        link.append(this.made("span", "ft-found-name", name), this.made("span", "ft-found-detail", detail));
        parts.push(link);
      });
      if (!parts.length) parts.push(this.made("div", "ft-found-none", `No host, NIC, link, job, flow or alert has '${this.query}' in its name.`));
      this.list.replaceChildren(...parts);
      this.list.hidden = false;
      this.input.setAttribute("aria-expanded", "true");
      this.mark(0);
    },
    made(tag, classes, text) {
      const element = document.createElement(tag);
      element.className = classes;
      element.textContent = text;
      return element;
    },
    close() {
      this.list.hidden = true;
      this.input.setAttribute("aria-expanded", "false");
      this.input.removeAttribute("aria-activedescendant");
    },
  },
};
