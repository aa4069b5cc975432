// A row of chips, each a link or a button, that changes through put() without a new rendering of the page.
// put({chips}), each [key, text, address or ""]. `first`: the chips to show once it is mounted. Emits `ready`, and `pick` with a key.
export default {
  template: `<div class="ft-chips"></div>`,
  props: { first: Object },
  emits: ["ready", "pick"],
  mounted() {
    if (this.first) this.put(this.first);
    this.$emit("ready");
  },
  methods: {
    put({ chips }) {
      this.$el.replaceChildren(...chips.map(([key, text, address]) => {
        const chip = document.createElement(address ? "a" : "button");
        chip.className = address ? "ft-chip ft-go" : "ft-chip";
        chip.textContent = text;
        if (address) chip.href = address;
        else { chip.type = "button"; chip.addEventListener("click", () => this.$emit("pick", key)); }
        return chip;
      }));
    },
  },
};
