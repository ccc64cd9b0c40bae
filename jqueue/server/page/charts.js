// Line charts. The drawing is decoration: the same figures stand beside it as text, and follow the pointer.

import { h, patch, svg } from "./dom.js";
import { ago, duration } from "./format.js";

const WIDTH = 600, HEIGHT = 120;
const RECENT = 120; // seconds for which a value stands beside the drawing as the last one

let pointed = null; // the chart under the pointer by its title, and the time there

const known = (value) => value !== null && value !== undefined;

// The lines of a series, and the points without a neighbour, which would be no line.
function paths(points, name, start, span, most) {
  let lines = "", dots = "";
  points.forEach((point, number) => {
    if (!known(point[name])) return;
    const x = ((point.at - start) / span) * WIDTH, y = HEIGHT - 2 - (point[name] / most) * (HEIGHT - 6);
    const before = known(points[number - 1]?.[name]), place = `${x.toFixed(1)} ${y.toFixed(1)}`;
    lines += `${before ? "L" : "M"}${place}`;
    if (!before && !known(points[number + 1]?.[name])) dots += `M${place}h0`;
  });
  return [lines, dots];
}

// A chart of some series: [name in the points, label] each. `format` makes a text of a value.
export function chart(title, points, series, format) {
  const values = series.flatMap(([name]) => points.map((point) => point[name] ?? 0));
  const top = Math.max(0, ...values), most = top || 1;
  const start = points.length ? points[0].at : 0, end = points.length ? points.at(-1).at : 1;
  const span = Math.max(end - start, 1);
  const far = (point) => Math.abs(point.at - pointed.at);
  const here = pointed?.title === title && points.length ? points.reduce((a, b) => (far(b) < far(a) ? b : a)) : null;
  const last = (name) => points.findLast((point) => point.at > end - RECENT && known(point[name]))?.[name];
  const shown = series.map(([name, label]) => {
    const value = here ? here[name] : last(name);
    return [label, known(value) ? format(value) : "–"];
  });
  const text = shown.map(([label, value]) => `${label} ${value}`).join(", "), at = here ? ago(here.at, end) : "now";
  const lines = series.flatMap(([name], number) => paths(points, name, start, span, most).map((d, lone) =>
    svg("path", { d, class: `line line-${number} ${lone ? "dot" : ""}` })));
  const point = (place) => (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    pointed = place && { title, at: start + ((event.clientX - box.left) / box.width) * span };
    patch(event.currentTarget.closest("figure"), chart(title, points, series, format));
  };
  const x = here && ((here.at - start) / span) * WIDTH;
  return h("figure", { class: "chart" },
    h("figcaption", {},
      h("h3", {}, title),
      h("ul", { class: "legend" }, shown.map(([label, value], number) =>
        h("li", {}, h("span", { class: `key key-${number}`, "aria-hidden": "true" }), `${label} `, h("b", {}, value)))),
    ),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title} ${at}: ${text}; highest: ${format(top)}`, onpointermove: point(true), onpointerleave: point(false) },
      svg("path", { d: `M0 ${HEIGHT - 1}H${WIDTH}`, class: "axis" }),
      svg("path", { d: `M0 4H${WIDTH}`, class: "axis faint" }),
      here && svg("path", { d: `M${x.toFixed(1)} 0V${HEIGHT}`, class: "axis" }),
      lines,
    ),
    h("p", { class: "scale", "aria-hidden": "true" },
      h("span", {}, end - start < 1 ? "collecting…" : `${duration(Math.floor(end - start))} ago`),
      h("span", {}, here ? at : `highest ${format(top)}`), h("span", {}, "now")),
  );
}
