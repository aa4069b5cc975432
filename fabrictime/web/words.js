// Text, or markup where `html` is set, that changes by put() alone: the page around it is not rendered anew.
// In: {said, title, classes}. Out: event `ready`.
export default {
  template: `<div></div>`,
  props: { said: String, title: String, html: Boolean },
  emits: ["ready"],
  watch: { said() { this.put(this); }, title() { this.put(this); } },
  mounted() { this.put(this); this.$emit("ready"); },
  methods: {
    put({ said, title, classes }) {
      const el = this.$el;
      if (said !== this.stood) { this.stood = said; el[this.html ? "innerHTML" : "textContent"] = said; }
      if (title) el.title = title; else el.removeAttribute("title");
      if (classes !== undefined) el.className = classes;
    },
  },
};
