// Reads a chart's values at a step, for pointer and keyboard; without it the page lacks nothing else.
"use strict";
const names = [...document.querySelectorAll(".runs b")].map((name) => name.textContent);
const moves = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };

for (const chart of document.querySelectorAll("svg.chart")) {
  let read; // a chart is taken apart when somebody first reads it, so that the page opens at once
  chart.addEventListener("pointermove", (event) => {
    read ??= reader(chart);
    read.near(((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth) * 880);
  });
  chart.addEventListener("pointerleave", () => read?.end());
  chart.addEventListener("keydown", (event) => {
    if (!(event.key in moves)) return;
    event.preventDefault();
    read ??= reader(chart);
    read.move(moves[event.key]);
  });
}

function reader(chart) {
  const [left, width, last, top, height, bottom, highest] = chart.dataset.frame.split(" ").map(Number);
  const output = chart.parentElement.querySelector("output");
  const cursor = chart.querySelector(".cursor");
  const curves = [...chart.querySelectorAll("g[class^=of-]")].map((group) => ({
    group,
    run: Number(group.getAttribute("class").slice(3)),
    points: group.querySelector(".line").getAttribute("d").slice(1).split(" ").map((point) => point.split(",").map(Number)),
  }));
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  const nearest = (list, x, of) => list.reduce((best, one, index) => (Math.abs(of(one) - x) < Math.abs(of(list[best]) - x) ? index : best), 0);
  let at = -1;

  function show(place) {
    at = Math.max(0, Math.min(places.length - 1, place));
    const x = places[at];
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    chart.classList.add("read");
    output.replaceChildren(said(`step ${Math.round(((x - left) / width) * last)}`));
    for (const { group, run, points } of curves) {
      const [near, y] = points[nearest(points, x, (point) => point[0])];
      if (getComputedStyle(group).display === "none" || Math.abs(near - x) > width / 20) continue;
      const value = highest - ((y - top) / height) * (highest - bottom);
      output.append(" ", said(`${names[run]} ${value.toPrecision(3)}`, run));
    }
  }

  return {
    near: (x) => show(nearest(places, x, (place) => place)),
    move: (step) => show(at < 0 && step !== Infinity ? 0 : at + step),
    end: () => {
      chart.classList.remove("read");
      output.replaceChildren();
    },
  };
}

function said(text, run) {
  const span = document.createElement("span");
  if (run !== undefined) {
    span.className = `of-${run}`;
    span.append(document.createElement("i"));
  }
  span.append(text);
  return span;
}
