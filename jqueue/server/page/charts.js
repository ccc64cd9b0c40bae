// Line charts. The drawing is decoration: the same figures stand beside it as text.

import { h, svg } from "./dom.js";
import { duration } from "./format.js";

const WIDTH = 600, HEIGHT = 120;
const RECENT = 120; // seconds for which a value stands beside the drawing as the last one

function path(points, name, start, span, most) {
  let drawn = "", pen = "M";
  for (const point of points) {
    const value = point[name];
    if (value === null || value === undefined) {
      pen = "M";
      continue;
    }
    const x = ((point.at - start) / span) * WIDTH, y = HEIGHT - 2 - (value / most) * (HEIGHT - 6);
    drawn += `${pen}${x.toFixed(1)} ${y.toFixed(1)}${pen === "M" ? "h0" : ""}`; // a point alone is a dot
    pen = "L";
  }
  return drawn;
}

// A chart of some series: [name in the points, label] each. `format` makes a text of a value.
export function chart(title, points, series, format) {
  const values = series.flatMap(([name]) => points.map((point) => point[name] ?? 0));
  const top = Math.max(0, ...values), most = top || 1;
  const start = points.length ? points[0].at : 0, end = points.length ? points.at(-1).at : 1;
  const span = Math.max(end - start, 1);
  const last = (name) => points.findLast((point) => point.at > end - RECENT && point[name] !== null
    && point[name] !== undefined)?.[name];
  const shown = series.map(([name, label]) => [label, last(name) === undefined ? "–" : format(last(name))]);
  const text = shown.map(([label, value]) => `${label} ${value}`).join(", ");
  const lines = series.map(([name], number) =>
    svg("path", { d: path(points, name, start, span, most), class: `line line-${number}` }),
  );
  return h("figure", { class: "chart" },
    h("figcaption", {},
      h("h3", {}, title),
      h("ul", { class: "legend" }, shown.map(([label, value], number) =>
        h("li", {}, h("span", { class: `key key-${number}`, "aria-hidden": "true" }), `${label} `, h("b", {}, value)))),
    ),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title} now: ${text}; highest: ${format(top)}` },
      svg("path", { d: `M0 ${HEIGHT - 1}H${WIDTH}`, class: "axis" }),
      svg("path", { d: `M0 4H${WIDTH}`, class: "axis faint" }),
      lines,
    ),
    h("p", { class: "scale", "aria-hidden": "true" },
      h("span", {}, end - start < 1 ? "collecting…" : `${duration(Math.floor(end - start))} ago`),
      h("span", {}, `highest ${format(top)}`), h("span", {}, "now")),
  );
}
