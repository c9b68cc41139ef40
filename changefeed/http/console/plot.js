// Plots of the last hours, by uPlot; a figure that is not known is a gap.

import { h } from "./dom.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/** A plot of [[seconds since 1970, ..], [value, ..]]; `show` writes a value. */
export class Plot {
  constructor(title, show, signal) {
    this.title = title;
    this.show = show;
    this.now = h("span", { class: "quiet" });
    this.place = h("div", { class: "plot" });
    this.element = h("figure", {}, h("figcaption", {}, title, " ", this.now), this.place);
    this.size = new ResizeObserver(() => this.plot?.setSize(this.extent()));
    this.size.observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
      () => this.plot?.redraw(), { signal });
  }

  extent() {
    return { width: Math.max(200, this.place.clientWidth), height: 150 };
  }

  update(at, values) {
    const last = values.findLast((value) => value != null);
    const known = values.filter((value) => value != null);
    this.now.textContent = last == null ? "nothing yet"
      : `now ${this.show(last)}, at most ${this.show(Math.max(...known))}`;
    if (this.plot) this.plot.setData([at, values]);
    else if (known.length > 1) this.plot = new uPlot(this.options(), [at, values], this.place);
  }

  options() {
    // Functions: a change between light and dark shows at the next draw.
    const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 },
      ticks: { stroke: () => colour("--line") }, font: "12px system-ui" };
    return {
      ...this.extent(), legend: { show: false }, cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 68, values: (_, ticks) => ticks.map((tick) => this.show(tick)) }],
      series: [{}, { stroke: () => colour("--plot"), width: 2, points: { show: false } }],
      hooks: { setCursor: [(plot) => this.pointed(plot.cursor.idx, plot.data)] },
    };
  }

  pointed(place, [at, values]) {
    this.place.title = place == null || values[place] == null ? ""
      : `${clock(at[place])} UTC: ${this.show(values[place])}`;
  }
}

const clock = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 16);
