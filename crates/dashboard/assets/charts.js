// Curves of several runs in one chart.
import { h, fill, number, short, duration } from "./elements.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const faint = (colour) => `${colour}2b`;

/** Exponential moving average, corrected for its start, that skips missing values. */
function smoothed(values, weight) {
  if (weight <= 0) return values;
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

/** Most curves with the area between their smallest and largest values. */
const BANDS_MAX = 8;

/** The text of a position on the x axis. */
const position = (axis, value) => (axis === "time" ? duration(value) : `step ${Math.round(value).toLocaleString("en-US")}`);

/** A card with a chart. `format` formats a value, `axis` a value of the y axis; with `zero`, that axis begins at zero;
    with `share`, it is within 0 and 1. */
export class ChartCard {
  constructor(title, { format = number, axis = short, zero = false, share = false } = {}) {
    this.title = title;
    this.format = format;
    this.axisText = axis;
    this.zero = zero;
    this.share = share;
    this.legend = h("ul", { class: "legend" });
    this.where = h("span", { class: "muted" });
    this.plotArea = h("div", { class: "plot", role: "img", "aria-label": `Chart: ${title}` });
    this.element = h("section", { class: "card chart" },
      h("div", { class: "card-head" }, h("h2", { text: title }), this.where), this.plotArea, this.legend);
    this.plot = null;
    this.shape = "";
    this.zoomed = false;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plotArea);
  }

  size() {
    return { width: Math.max(120, Math.floor(this.plotArea.clientWidth)), height: 220 };
  }

  resize() {
    if (this.plot && this.plotArea.clientWidth > 0) this.plot.setSize(this.size());
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
  }

  /**
   * Draws curves: each has a name, a colour, x, mean, and optionally min and max, or `points` for single measurements.
   */
  show(curves, { axis = "step", smoothing = 0, log = false, band = true } = {}) {
    this.curves = curves.filter((curve) => curve.x.length > 0);
    this.axis = axis;
    const withBand = band && !log && this.curves.filter((curve) => curve.min).length <= BANDS_MAX;
    const tables = this.curves.map((curve) => {
      const mean = curve.points ? curve.mean : smoothed(curve.mean, smoothing);
      const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
      return withBand && curve.min ? [curve.x, positive(mean), curve.min, curve.max] : [curve.x, positive(mean)];
    });
    const data = tables.length === 0 ? [[]] : tables.length === 1 ? tables[0] : window.uPlot.join(tables);
    const shape = JSON.stringify([axis, log, this.curves.map((curve) => [curve.name, curve.colour, curve.points]),
      tables.map((table) => table.length)]);
    if (shape !== this.shape || !this.plot) {
      this.shape = shape;
      this.plot?.destroy();
      this.zoomed = false;
      this.plot = tables.length === 0 ? null : new window.uPlot(this.options(tables, log), data, this.plotArea);
      if (tables.length === 0) fill(this.plotArea, h("p", { class: "muted note", text: "No values yet" }));
    } else {
      this.plot.setData(data, !this.zoomed);
      if (this.zoomed) this.plot.redraw();
    }
    this.showLegend(null);
  }

  /** The ends of the vertical axis for values from `low` to `high`; null without values. */
  extent(low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.zero) return [Math.min(0, low), high * 1.05 || 1];
    const pad = Math.abs(low) * 0.1 || 1;
    const range = low === high ? [low - pad, high + pad] : uPlot.rangeNum(low, high, 0.1, true);
    return this.share ? [Math.max(0, range[0]), Math.min(1, range[1])] : range;
  }

  options(tables, log) {
    fill(this.plotArea);
    const series = [{}];
    const bands = [];
    this.means = [];
    this.curves.forEach((curve, at) => {
      this.means.push(series.length);
      const single = curve.x.length === 1;
      series.push({
        stroke: curve.colour, width: curve.dashed ? 1.25 : 1.75, spanGaps: false,
        dash: curve.dashed ? [6, 4] : undefined,
        points: { show: Boolean(curve.points) || single, size: single ? 6 : 4, fill: curve.colour },
      });
      if (tables[at].length > 2) {
        series.push({ stroke: "transparent", width: 0, points: { show: false } });
        series.push({ stroke: "transparent", width: 0, points: { show: false } });
        bands.push({ series: [series.length - 1, series.length - 2], fill: faint(curve.colour) });
      }
    });
    const axis = {
      stroke: () => css("--muted"), font: "11px system-ui, sans-serif",
      grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
    };
    const x = this.axis === "time" ? (values) => values.map((value) => shortDuration(value)) : (values) => values.map(short);
    return {
      ...this.size(), series, bands,
      legend: { show: false },
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: `curves-${this.axis}` }, drag: { x: true, y: false, setScale: true }, points: { size: 7 } },
      scales: {
        x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, low, high) => this.extent(low, high) },
      },
      axes: [
        { ...axis, values: (_, values) => x(values), space: 60, size: 28 },
        { ...axis, values: (_, values) => values.map((value) => (value === null ? "" : this.axisText(value))), size: 56 },
      ],
      hooks: {
        setCursor: [(plot) => this.showLegend(plot.cursor.idx)],
        setScale: [(plot, key) => {
          if (key !== "x") return;
          const xs = plot.data[0];
          const { min, max } = plot.scales.x;
          this.zoomed = xs.length > 0 && (min > xs[0] || max < xs[xs.length - 1]);
        }],
      },
    };
  }

  /** Shows the values at a position, or the last ones. */
  showLegend(at) {
    const has = this.plot && at !== null && at !== undefined;
    this.where.textContent = has ? position(this.axis, this.plot.data[0][at]) : "";
    const crowded = (this.curves ?? []).length > BANDS_MAX;
    fill(this.legend, ...(this.curves ?? []).map((curve, index) => {
      if (crowded && curve.dashed) return null;
      const values = this.plot?.data[this.means[index]] ?? [];
      let from = has ? at : values.length - 1;
      while (from > 0 && (values[from] === undefined || values[from] === null)) from -= 1;
      return h("li", {},
        h("span", { class: curve.dashed ? "key dashed" : "key", style: { "--colour": curve.colour } }),
        h("span", { class: "legend-name", text: curve.name }),
        h("span", { class: "legend-value", text: this.format(values[from]) }));
    }));
  }
}

function shortDuration(seconds) {
  if (seconds < 120) return `${Number(seconds.toPrecision(3))}s`;
  if (seconds < 7200) return `${Number((seconds / 60).toPrecision(3))}min`;
  return `${Number((seconds / 3600).toPrecision(3))}h`;
}

/** Draws all charts again with the colours of the theme. */
export function repaint(cards) {
  cards.forEach((card) => card.plot?.redraw(false, true));
}
