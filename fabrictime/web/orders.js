// Buttons that change something, each with the command that does the same. A pressed button shows the command, a field
// for what the order needs, and a button that sends it to the page's HTTP interface, which checks the user's role.
// put({orders, refusal, classes}), each order {name, label, path, body, command, entry, choices}: `entry` is the part of
// the body that the user gives, one of `choices` [text, value] or text; '{}' in `command` is its place.
// Emits `ready`. The form is kept while orders with the same names arrive.
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

function made(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function sent(order, value) {
  const body = { ...order.body, ...(order.entry ? { [order.entry]: value } : {}) };
  const answer = await fetch(order.path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const content = await answer.json().catch(() => ({}));
  const unconfirmed = content.missing?.length ? `; no confirmation from ${content.missing.join(", ")}` : "";
  if (answer.ok) return `Done${unconfirmed}.`;
  throw new Error(typeof content.detail === "string" ? content.detail : `HTTP status ${answer.status}`);
}

export default {
  template: `<div class="ft-orders"></div>`,
  emits: ["ready"],
  mounted() { this.$emit("ready"); },
  methods: {
    put({ orders, refusal, classes }) {
      const shown = JSON.stringify([orders, refusal]);
      this.$el.className = classes;
      if (shown === this.shown) return;
      this.shown = shown;
      this.form = made("div", { className: "ft-order-form", hidden: true });
      this.form.setAttribute("role", "group");
      this.buttons = orders.map((order) => this.button(order));
      this.$el.replaceChildren(made("div", { className: "ft-order-buttons" }, ...this.buttons), this.form);
      this.refusal = refusal;
    },
    button(order) {
      const button = made("button", { type: "button", className: "ft-order", textContent: order.label });
      button.dataset.testid = `order-${order.name}`;
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => this.open(order, button));
      return button;
    },
    open(order, button) {
      const opens = button.getAttribute("aria-expanded") === "false";
      for (const one of this.buttons) one.setAttribute("aria-expanded", String(opens && one === button));
      this.form.hidden = !opens;
      if (!opens) return;
      this.form.setAttribute("aria-label", order.label);
      const field = this.field(order), command = made("code", { className: "ft-order-command" });
      const value = () => (order.choices.length ? order.choices[field.selectedIndex][1] : field?.value.trim());
      const send = made("button", { type: "button", className: "ft-order ft-order-send", textContent: order.label });
      const copy = made("button", { type: "button", className: "ft-link", textContent: "copy" });
      const result = made("output", { className: "ft-detail", textContent: this.refusal });
      const show = () => {
        const text = order.choices.length ? order.choices[field.selectedIndex][0] : quoted(field?.value.trim() || "TEXT");
        command.textContent = order.command.replace("{}", () => text);
        send.disabled = Boolean(this.refusal) || (field && !order.choices.length && !value());
      };
      field?.addEventListener("input", show);
      copy.addEventListener("click", () => navigator.clipboard?.writeText(command.textContent));
      send.addEventListener("click", async () => {
        send.disabled = true;
        result.textContent = "Sending …";
        try { result.textContent = await sent(order, value()); }
        catch (error) { result.textContent = `Not done: ${error.message}`; show(); }
      });
      for (const [part, test] of [[field, "field"], [command, "command"], [send, "send"], [result, "result"]])
        if (part) part.dataset.testid = `order-${test}`;
      this.form.replaceChildren(...(field ? [field] : []), send, command, copy, result);
      show();
    },
    field(order) {
      if (!order.entry) return null;
      const field = order.choices.length
        ? made("select", { className: "ft-time-choice" }, ...order.choices.map(([text]) => made("option", { textContent: text })))
        : made("input", { type: "text", className: "ft-input", maxLength: 2000 });
      field.setAttribute("aria-label", order.entry);
      return field;
    },
  },
};
