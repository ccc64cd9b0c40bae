// Makes and updates elements. Texts become text nodes and attributes; nothing is ever read as markup.

import { absent } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
// Control characters, and the characters that reverse or hide text, are shown as escapes.
const HIDDEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (sign) => "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"));
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (absent(value) || value === false) continue;
    if (name.startsWith("on") || name === "value") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => !absent(child) && child !== false));
  return node;
}

export const h = (name, properties, ...children) => fill(document.createElement(name), properties, children);
export const svg = (name, properties, ...children) => fill(document.createElementNS(SVG, name), properties, children);

// A text that somebody has written into the queue: made visible, and kept from turning the line around.
// A long one may be cut by the style, and is whole in its tooltip.
export function foreign(text, properties = {}) {
  const shown = visible(text);
  return h("bdi", { title: shown.length > 24 ? shown.slice(0, 1000) : null, ...properties }, shown);
}

// The same in a table, cut after some lines; nothing if there is no text.
export function excerpt(text) {
  return text ? h("span", { class: "error-text", title: visible(text).slice(0, 1000) }, foreign(text)) : null;
}

// True while the pointer is over a row, which must not move then. A finger is nowhere between two touches.
let byTouch = false;
for (const kind of ["pointerdown", "pointermove"]) document.addEventListener(kind, (event) => { byTouch = event.pointerType === "touch"; });
export const pointsAtRow = () => !byTouch && document.querySelector("main tbody:hover") !== null;

const HANDLERS = ["onclick", "onsubmit", "onchange", "onpointermove", "onpointerleave", "onpointerdown", "onpointerup",
  "onkeydown", "onblur", "oninput"];

// Make `old` look like `made`, and keep its nodes: focus, selection and scroll positions survive an update.
export function patch(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) if (old[name] !== made[name]) old[name] = made[name];
  if (old.checked !== made.checked) old.checked = made.checked;
  if (old !== document.activeElement && old.value !== made.value) old.value = made.value;
  const keyed = new Map();
  for (const child of old.childNodes) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const child of [...made.childNodes]) {
    const known = child.dataset?.key ? keyed.get(child.dataset.key) : place;
    if (!known || (!child.dataset?.key && known.dataset?.key)) {
      old.insertBefore(child, place);
      continue;
    }
    if (known !== place) old.insertBefore(known, place);
    const next = known.nextSibling;
    patch(known, child);
    place = next;
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
