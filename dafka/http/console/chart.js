// Lines over time. uPlot is loaded with the first chart.
import { html, useEffect, useRef } from "./vendor/htm-preact-3.1.1.js";
import { bytes } from "./format.js";

let loading = null;
const load = () => (loading ??= import("./vendor/uplot-1.6.32.js").then((module) => module.default));

/** Return a colour of the theme as the canvas takes it. */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const BINARY = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((each) => [each, each * 1024, each * 1024 ** 2, each * 1024 ** 3]).sort((one, other) => one - other);

/** Return how a chart is drawn, in the colours of the theme. */
function options(width, height, series, formatValue) {
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: colour("--muted"), font, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height,
    padding: [8, 22, 0, 0],
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    legend: { show: false },
    scales: { x: { time: true, range: (_, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, grid: { show: false }, space: 70, values: "{HH}:{mm}:{ss}", size: 26 },
      { ...axis, size: 58, space: 26, incrs: formatValue === bytes ? BINARY : undefined, values: (_, splits) => splits.map((value) => formatValue(value)) },
    ],
    series: [
      {},
      ...series.map(({ name, index }) => ({
        label: name,
        stroke: colour(`--chart-${index}`),
        width: 1.6,
        spanGaps: false,
        points: { show: false },
      })),
    ],
  };
}

/**
 * Draw lines over time. `times` are milliseconds; each of `series` has a name, its values, and the index of its colour.
 * The text under the chart says the newest values, for those who do not see it.
 */
export function Chart({ label, times, series, formatValue, height = 150 }) {
  const place = useRef();
  const plot = useRef(null);
  const newest = useRef(null);
  newest.current = [times.map((ms) => ms / 1000), ...series.map((each) => each.values)];
  const ready = times.length > 1;
  useEffect(() => {
    if (!ready) return undefined;
    let ended = false;
    const make = (uPlot) => {
      if (ended) return;
      plot.current?.destroy();
      const width = Math.max(160, place.current.clientWidth);
      plot.current = new uPlot(options(width, height, series, formatValue), newest.current, place.current);
    };
    let draw = () => {};
    load().then((uPlot) => {
      draw = () => make(uPlot);
      draw();
    });
    const resized = new ResizeObserver(() => {
      if (plot.current) plot.current.setSize({ width: Math.max(160, place.current.clientWidth), height });
    });
    resized.observe(place.current);
    const themed = () => draw();
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("themechange", themed);
    dark.addEventListener("change", themed);
    return () => {
      ended = true;
      resized.disconnect();
      window.removeEventListener("themechange", themed);
      dark.removeEventListener("change", themed);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [ready, series.map((each) => each.name).join()]);
  useEffect(() => {
    plot.current?.setData(newest.current);
  });
  const summary = series.map((each) => `${each.name}: ${formatValue(each.values.at(-1) ?? 0)}`).join(", ");
  return html`<figure>
    ${ready
      ? html`<div class="chart" key="chart" ref=${place} role="img" aria-label=${`${label}. ${summary}`}></div>`
      : html`<p class="chart muted" key="waiting">The line begins with the next figures.</p>`}
    <figcaption class="legend">
      ${series.map((each) => html`<span key=${each.name}><i class=${`c${each.index}`}></i>${each.name} ${formatValue(each.values.at(-1) ?? 0)}</span>`)}
    </figcaption>
  </figure>`;
}
