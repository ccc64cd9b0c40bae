// Line charts. The drawing is decoration: the same figures stand beside it as text, and follow the pointer or the keys.
// A range is chosen by dragging, or by Shift and the arrow keys and then Enter; Escape shows the whole time again.

import { h, patch, svg } from "./dom.js";
import { absent, ago, local, moment } from "./format.js";

export const SPANS = [["3600", "last hour"], ["900", "last 15 minutes"], ["86400", "last day"], ["604800", "last week"]];

const WIDTH = 600, HEIGHT = 120;
const RECENT = 120; // seconds for which a value stands beside the drawing as the last one

let pointed = null; // the chart that is looked at by its title, the time there, and the time at which a range begins
let range = null; // the range that all charts show, as two times

// The lines of a series, and the points without a neighbour, which would be no line.
function paths(points, name, x, most) {
  let lines = "", dots = "";
  points.forEach((point, number) => {
    if (absent(point[name])) return;
    const y = HEIGHT - 2 - (point[name] / most) * (HEIGHT - 6);
    const alone = absent(points[number - 1]?.[name]), place = `${x(point.at)} ${y.toFixed(1)}`;
    lines += `${alone ? "M" : "L"}${place}`;
    if (alone && absent(points[number + 1]?.[name])) dots += `M${place}h0`;
  });
  return [lines, dots];
}

// Points with the sums of a series and of those before it, for a drawing of the parts of a whole.
const sums = (points, series) => points.map((point) => {
  let sum = null;
  return { at: point.at, ...Object.fromEntries(series.map(([name]) => [name, absent(point[name]) ? sum : (sum += point[name])])) };
});

const filled = (lines) => lines.replace(/M(\S+)[^M]*/g, (line, start) => `${line}V${HEIGHT}H${start}Z`);

// A time on the axis, as long as it must be to tell it from the others.
function tick(at, span) {
  const [day, time] = local(at).split(" ");
  return span > 2 * 86400 ? day.slice(5) : span > 86400 / 2 ? `${day.slice(5)} ${time.slice(0, 5)}` : span > 300 ? time.slice(0, 5) : time;
}

function show(chosen, redraw) {
  [range, pointed] = [chosen, null];
  redraw();
}

// The button that leaves a range; nothing without one.
export function wholeTime(redraw) {
  return range && [h("button", { type: "button", onclick: () => show(null, redraw) }, "Show the whole time"), " "];
}

// A chart of some series: [name in the points, label] each, which are the parts of a whole if it is `stacked`. `format` makes a
// text of a value, `redraw` draws the page again.
export function chart(title, all, series, format, redraw, stacked = false) {
  const inside = range ? all.filter(({ at }) => at >= range[0] && at <= range[1]) : all, points = inside.length > 1 ? inside : all;
  const drawn = stacked ? sums(points, series) : points, top = Math.max(0, ...series.flatMap(([name]) => drawn.map((point) => point[name] ?? 0)));
  const start = points.length ? points[0].at : 0, end = points.length ? points.at(-1).at : 1, now = all.at(-1)?.at ?? 1;
  const span = Math.max(end - start, 1), x = (at) => (((at - start) / span) * WIDTH).toFixed(1);
  const nearest = (at) => points.reduce((a, b) => (Math.abs(b.at - at) < Math.abs(a.at - at) ? b : a));
  const looked = pointed?.title === title && points.length ? pointed : null, here = looked && nearest(looked.at);
  const last = (name) => points.findLast((point) => point.at > end - RECENT && !absent(point[name]))?.[name];
  const said = (value) => (absent(value) ? "–" : format(value));
  const shown = series.map(([name, label]) => [label, said(here ? here[name] : last(name))]);
  const at = here ? ago(here.at, now) : end === now ? "now" : ago(end, now);
  const from = here && !absent(looked.from) ? nearest(looked.from).at : null;
  const text = `${shown.map(([label, value]) => `${label} ${value}`).join(", ")}; highest: ${top > 0 ? format(top) : "none yet"}`;
  const zoom = (a, b) => show(a !== null && a !== b ? [Math.min(a, b), Math.max(a, b)] : range, redraw);
  const look = ({ currentTarget }, found) => {
    pointed = found;
    patch(currentTarget.closest("figure"), chart(title, all, series, format, redraw, stacked));
  };
  const time = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return nearest(start + ((event.clientX - box.left) / box.width) * span).at;
  };
  const press = (event) => {
    const number = points.indexOf(here ?? points.at(-1));
    const next = { ArrowLeft: number - 1, ArrowRight: number + 1, Home: 0, End: points.length - 1 }[event.key];
    if (next !== undefined) {
      const to = points[next] ?? points[number];
      look(event, { title, at: to.at, from: event.shiftKey ? from ?? points[number].at : null });
    } else if (event.key === "Enter" && from !== null) zoom(from, here.at);
    else if (event.key === "Escape") show(here ? range : null, redraw);
    else return;
    event.preventDefault();
  };
  return h("figure", { class: "chart" },
    h("figcaption", {}, h("h3", {}, title, h("small", {}, here ? ` ${at}` : top > 0 ? ` highest ${format(top)}` : " none yet")),
      h("ul", { class: "legend" }, shown.map(([label, value], number) =>
        h("li", {}, h("span", { class: `key key-${number}`, "aria-hidden": "true" }), `${label} `, h("b", {}, value))))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", tabindex: "0", role: "slider", "aria-label": title,
      "aria-valuemin": 0, "aria-valuemax": Math.max(0, points.length - 1), "aria-valuetext": `${at}: ${text}`,
      "aria-valuenow": here ? points.indexOf(here) : Math.max(0, points.length - 1), ...(points.length > 1 && {
        onkeydown: press,
        onpointermove: (event) => look(event, { title, at: time(event), from }),
        onpointerdown: (event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          look(event, { title, at: time(event), from: time(event) });
        },
        onpointerup: (event) => zoom(from, time(event)),
        onpointerleave: (event) => look(event, null),
        onblur: (event) => look(event, null),
      }) },
    svg("path", { d: `M0 ${HEIGHT - 1}H${WIDTH}`, class: "axis" }),
    svg("path", { d: `M0 4H${WIDTH}M${WIDTH / 3} 0V${HEIGHT}M${(2 * WIDTH) / 3} 0V${HEIGHT}`, class: "axis faint" }),
    from !== null && svg("path", { d: `M${x(from)} 0H${x(here.at)}V${HEIGHT}H${x(from)}Z`, class: "range" }),
    here && svg("path", { d: `M${x(here.at)} 0V${HEIGHT}`, class: "axis" }),
    series.map(([name], number) => paths(drawn, name, x, top || 1).map((d, lone) =>
      svg("path", { d: stacked && !lone ? filled(d) : d, class: `line line-${number} ${lone ? "dot" : stacked ? "area" : ""}` }))).reverse(),
    ),
    h("p", { class: "scale", "aria-hidden": "true" }, end - start < 1 ? h("span", {}, "collecting…")
      : [0, 1, 2, 3].map((third) => h("time", { title: moment(start + (third * span) / 3) }, tick(start + (third * span) / 3, span)))),
  );
}
