// Numbers and times as text, and elements whose content is only ever text.
const UNITS = ["", "k", "M", "G", "T", "P"];

function scaled(value, unit) {
  let at = 0;
  while (value >= 1000 && at < UNITS.length - 1) { value /= 1000; at += 1; }
  const digits = value >= 100 || at === 0 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[at]}${unit}`;
}

export const rate = (bps) => scaled(bps ?? 0, "bit/s");
export const bytes = (size) => scaled(size ?? 0, "B");
export const percent = (share) => `${Math.round(100 * share)} %`;

export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${(s / 3600).toFixed(1)} h`;
}

let sinceEpoch = true;
export function timesAreSinceEpoch(value) { sinceEpoch = value; }

export function clock(ms, fraction = false) {
  if (sinceEpoch) {
    const at = new Date(ms);
    const text = [at.getHours(), at.getMinutes(), at.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
    return fraction ? `${text}.${String(at.getMilliseconds()).padStart(3, "0")}` : text;
  }
  const s = ms / 1000;
  return fraction || s < 100 ? `${s.toFixed(fraction ? 3 : 1)} s` : `${Math.round(s)} s`;
}

// make("td", {class: "n"}, "text", child): strings become text nodes, so a job's name is never markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const swatch = (name) => make("span", { class: `swatch ${name}`, "aria-hidden": "true" });

// Rows of a table body by key: those that stay keep their element, and with it the focus. A row is made anew if its text changes.
export function keyed(parent, entries, build) {
  const known = new Map([...parent.children].map((child) => [child.rowKey, child]));
  const wanted = [];
  for (const [key, row] of entries) {
    const state = JSON.stringify(row);
    let element = known.get(key);
    if (!element || element.rowState !== state) {
      const fresh = build(key, row);
      fresh.rowKey = key;
      fresh.rowState = state;
      if (element?.contains(document.activeElement)) {
        const again = fresh.querySelector("button");
        element.replaceWith(fresh);
        again?.focus({ preventScroll: true });
      }
      element = fresh;
    }
    wanted.push(element);
  }
  for (let at = 0; at < wanted.length; at += 1) {
    if (parent.children[at] !== wanted[at]) parent.insertBefore(wanted[at], parent.children[at] ?? null);
  }
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}
