// A part of the page that comes and goes by put() alone: the page around it is not rendered anew.
// In: {classes}. Out: event `ready`.
export default {
  template: `<div><slot></slot></div>`,
  emits: ["ready"],
  mounted() { this.$emit("ready"); },
  methods: { put({ classes }) { this.$el.className = classes; } },
};
