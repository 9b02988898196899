// A small line of rates over the last minutes, with its numbers as text for who cannot see it.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 24;

export function makeSparkline() {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("role", "img");
  made.setAttribute("class", "sparkline");
  for (const name of ["in", "out"]) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", name);
    made.append(line);
  }
  return made;
}

// The line fills from the right, and grows narrower as time goes by.
const POINTS_LEAST = 30;

export function drawSparkline(node, series) {
  const top = Math.max(1e-9, ...series.in, ...series.out);
  const lines = [series.in, series.out];
  lines.forEach((values, which) => {
    const step = WIDTH / (Math.max(POINTS_LEAST, values.length) - 1);
    const first = WIDTH - step * (values.length - 1);
    const points = values.map((value, at) => `${(first + at * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`);
    node.children[which].setAttribute("points", points.join(" "));
  });
  node.setAttribute("aria-label", series.in.length ? `the busiest moment had ${Math.round(top)} messages a second` : "no rates yet");
}
