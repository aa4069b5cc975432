// Text, or markup with `html`, that changes through put() without a new rendering of the page.
// put({content, title, classes}); emits `ready`.
export default {
  template: `<div></div>`,
  emits: ["ready"],
  props: { content: String, title: String, html: Boolean },
  watch: { content() { this.put(this); }, title() { this.put(this); } },
  mounted() { this.put(this); this.$emit("ready"); },
  methods: {
    put({ content, title, classes }) {
      const el = this.$el;
      if (content !== this.shown) { this.shown = content; el[this.html ? "innerHTML" : "textContent"] = content; }
      if (title) el.title = title; else el.removeAttribute("title");
      if (classes !== undefined) el.className = classes;
    },
  },
};
