// The colour scheme: as the system's, or as the reader chose in this browser.
const KEY = "fabrictime-scheme", system = matchMedia("(prefers-color-scheme: dark)"), listeners = new Set();
let chosen = "system";
try { chosen = localStorage.getItem(KEY) ?? "system"; } catch { /* a browser without storage */ }

export const scheme = () => chosen;
export const dark = () => (chosen === "system" ? system.matches : chosen === "dark");
export function setScheme(name) {
  chosen = name;
  try { localStorage.setItem(KEY, name); } catch { /* the choice lasts for this page */ }
  document.documentElement.style.colorScheme = name === "system" ? "" : name;
  window.Quasar?.Dark.set(name === "system" ? "auto" : name === "dark");
  for (const listener of listeners) listener();
}
// Call `listener` after each change of the scheme; returns the function that ends this.
export function onScheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
system.addEventListener("change", () => { for (const listener of listeners) listener(); });
