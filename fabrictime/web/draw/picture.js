// Pictures of the page as files of the browser.
export const background = () => getComputedStyle(document.querySelector(".ft-card")).backgroundColor;
export function save(name, url) {
  const link = document.createElement("a");
  [link.href, link.download] = [url, name];
  link.click();
}
