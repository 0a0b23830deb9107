// Elements of the page, and numbers as text. Text from runs is only ever set as text, never as HTML.

/** Creates an element with attributes and children; `class`, `on...` handlers and `style` objects are supported. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([key, part]) => element.style.setProperty(key, part));
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** The colours of runs, in the order in which they are selected. */
const COLOURS = ["#4c8dff", "#ff8a4c", "#2fbf8f", "#e2557a", "#a678f0", "#d9a900", "#23b5d3", "#8fb534", "#c78557", "#8f9bb3"];
export const colour = (at) => COLOURS[at % COLOURS.length];

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** 1234567 as `1,234,567`. */
export const count = (value) => (missing(value) ? "–" : Math.round(value).toLocaleString("en-US"));

/** A value with four significant digits. */
export function number(value) {
  if (missing(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return count(value);
  return String(Number(value.toPrecision(4)));
}

/** A value in few characters, for axes. */
export function short(value) {
  if (missing(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(3)));
}

export const percent = (share) => (missing(share) ? "–" : `${(100 * share).toFixed(share > 0.9995 || share === 0 ? 0 : 2)} %`);

export function bytes(value) {
  if (missing(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1023.95 && at + 1 < units.length) { value /= 1024; at += 1; }
  return `${at === 0 ? value : value.toFixed(1)} ${units[at]}`;
}

export function duration(seconds) {
  if (missing(seconds) || seconds < 0) return "–";
  if (seconds < 0.0995) return `${(1e3 * seconds).toPrecision(2)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor(whole % 3600 / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor(whole % 86400 / 3600)} h`;
}

export const clock = (t) => (missing(t) ? "–" : new Date(1e3 * t).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }));

export function ago(t) {
  const seconds = Date.now() / 1e3 - t;
  if (seconds < 10) return "now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

/** A table with a header; rows are lists of cells, each a text or an element. */
export function table(caption, head, rows, numeric = []) {
  const cell = (tag, content, at) => {
    const element = h(tag, { class: numeric.includes(at) ? "numeric" : null, scope: tag === "th" ? "col" : null });
    element.append(content ?? "–");
    return element;
  };
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden", text: caption }),
      h("thead", {}, h("tr", {}, ...head.map((text, at) => cell("th", text, at)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((content, at) => cell("td", content, at)))))));
}

export const note = (text) => h("p", { class: "muted note", text });
