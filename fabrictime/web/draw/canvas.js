// What the components that draw on canvas share: their life, colour scheme, size, and the box under the mouse.
import { onScheme } from "./scheme.js";
import { background, save } from "./picture.js";

export function canvasComponent(template, Drawer, connect, recolor) {
  return {
    template,
    props: { label: String },
    async mounted() {
      await new Promise((resolve) => setTimeout(resolve, 0));
      const el = this.$el, drawer = (this.drawer = new Drawer(el));
      const at = (e) => { const b = el.getBoundingClientRect(); return [e.clientX - b.left, e.clientY - b.top]; };
      connect(el, drawer, at, (hit) => this.$emit("pick", hit));
      this.watch = new ResizeObserver(() => drawer.size());
      this.watch.observe(el);
      this.endScheme = onScheme(() => recolor(drawer));
      drawer.size();
      this.frames = 0;
      el.ft = { drawer };
      this.$emit("ready");
    },
    beforeUnmount() {
      this.endScheme?.();
      this.watch?.disconnect();
    },
    methods: {
      picture(name) {
        const layers = [...this.$el.querySelectorAll("canvas")], whole = document.createElement("canvas");
        [whole.width, whole.height] = [layers[0].width, layers[0].height];
        const g = whole.getContext("2d");
        g.fillStyle = background();
        g.fillRect(0, 0, whole.width, whole.height);
        for (const layer of layers) g.drawImage(layer, 0, 0, whole.width, whole.height);
        save(name, whole.toDataURL());
      },
      frame(seq, f) {
        if (!this.drawer) return; // not mounted yet: the server sends all again at `ready`
        this.drawer.frame(f);
        this.frames++;
        this.$el.dataset.frames = this.frames;
        requestAnimationFrame(() => this.$emit("ack", seq));
      },
    },
  };
}
// Show a text beside the mouse, inside a width and height.
export function placeTip(box, html, x, y, width, height) {
  box.innerHTML = html;
  box.style.display = "block";
  box.style.left = `${Math.max(4, Math.min(x + 14, width - box.offsetWidth - 6))}px`;
  box.style.top = `${y + 16 + box.offsetHeight > height ? Math.max(4, y - box.offsetHeight - 10) : y + 16}px`;
}
