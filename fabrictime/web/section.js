// A part of the page that is shown and hidden through put() without a new rendering of the page.
// put({classes}); emits `ready`.
export default {
  template: `<div><slot></slot></div>`,
  emits: ["ready"],
  mounted() { this.$emit("ready"); },
  methods: { put({ classes }) { this.$el.className = classes; } },
};
