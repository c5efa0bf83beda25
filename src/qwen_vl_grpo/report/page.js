// Reads a chart's values at a step, for pointer and keyboard; without it the page lacks nothing else.
"use strict";
const names = [...document.querySelectorAll(".runs b")].map((name) => name.textContent);

for (const chart of document.querySelectorAll("svg.chart")) {
  const [left, width, last, top, height, bottom, highest] = chart.dataset.frame.split(" ").map(Number);
  const output = chart.parentElement.querySelector("output");
  const cursor = chart.querySelector(".cursor");
  const curves = [...chart.querySelectorAll("g[class^=of-]")].map((group) => ({
    group,
    run: Number(group.getAttribute("class").slice(3)),
    points: group.querySelector(".line").getAttribute("d").slice(1).split(" ").map((point) => point.split(",").map(Number)),
  }));
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  let at = -1;

  const show = (place) => {
    at = Math.max(0, Math.min(places.length - 1, place));
    const x = places[at];
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    chart.classList.add("read");
    output.replaceChildren(said(`step ${Math.round(((x - left) / width) * last)}`));
    for (const { group, run, points } of curves) {
      if (getComputedStyle(group).display === "none") continue;
      const near = points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      if (Math.abs(near[0] - x) > width / 20) continue;
      const value = highest - ((near[1] - top) / height) * (highest - bottom);
      output.append(" ", said(`${names[run]} ${value.toPrecision(3)}`, run));
    }
  };
  const said = (text, run) => {
    const span = document.createElement("span");
    if (run !== undefined) {
      span.className = `of-${run}`;
      span.append(document.createElement("i"));
    }
    span.append(text);
    return span;
  };
  chart.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - chart.getBoundingClientRect().left) / chart.clientWidth) * 880;
    show(places.reduce((best, place, index) => (Math.abs(place - x) < Math.abs(places[best] - x) ? index : best), 0));
  });
  chart.addEventListener("pointerleave", () => {
    chart.classList.remove("read");
    output.replaceChildren();
  });
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -places.length, End: places.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(at < 0 && event.key !== "End" ? 0 : at + moves[event.key]);
  });
}
