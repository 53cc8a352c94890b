// The load of each class over the whole history, and the time shown.
import uPlot from "/page/vendor/uplot/uPlot.esm.js";
import { CLASSES } from "./model.js";
import { clock, rate } from "./text.js";

const DASH = { mpi: [], staging: [9, 4], io: [2, 4], wan: [16, 5] };

export class Load {
  constructor(container, pick) {
    this.container = container;
    this.pick = pick;
    this.marks = [];
    this.shown = null;
    this.data = [[], ...CLASSES.map(() => [])];
    this.build();
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(container);
  }

  size() { return { width: Math.max(200, this.container.clientWidth), height: 150 }; }

  build() {
    this.plot?.destroy();
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("soft"), space: 90, grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      ...this.size(), scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(1000, high * 1.3)] } }, cursor: { y: false, drag: { x: false, y: false } },
      legend: { show: false },
      axes: [{ ...axis, values: (_, at) => at.map((t) => clock(t)) }, { ...axis, space: 34, size: 78, values: (_, at) => at.map((value) => rate(value)) }],
      series: [{ label: "time", value: (_, t) => (t === null ? "" : clock(t)) }, ...CLASSES.map((name) => ({ label: name, stroke: colour(name), dash: DASH[name], width: 2, points: { show: false }, value: (_, value) => (value === null || value === undefined ? "" : rate(value)) }))],
      hooks: { draw: [(plot) => this.draw(plot)] },
    }, this.data, this.container);
    this.plot.over.addEventListener("click", (event) => {
      const t = this.plot.posToVal(event.offsetX, "x");
      if (Number.isFinite(t)) this.pick(Math.round(t));
    });
  }

  // Marks of sets, and the time that is shown.
  draw(plot) {
    const css = getComputedStyle(document.documentElement);
    const { ctx, bbox } = plot;
    const line = (t, colour, width) => {
      const x = plot.valToPos(t, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return null;
      ctx.fillStyle = colour;
      ctx.fillRect(x - width / 2, bbox.top, width, bbox.height);
      return x;
    };
    ctx.save();
    const ratio = devicePixelRatio || 1;
    ctx.font = `${10 * ratio}px system-ui, sans-serif`;
    let free = -1;
    for (const mark of this.marks) {
      const x = line(mark.t, css.getPropertyValue("--idle").trim(), ratio);
      if (x === null || x < free) continue;
      ctx.fillStyle = css.getPropertyValue("--soft").trim();
      ctx.fillText(mark.text, x + 3 * ratio, bbox.top + 10 * ratio);
      free = x + ctx.measureText(mark.text).width + 8 * ratio;
    }
    if (this.shown !== null) line(this.shown, css.getPropertyValue("--accent").trim(), 2 * ratio);
    ctx.restore();
  }

  set(series, marks) {
    this.marks = marks;
    this.data = [series.t, ...CLASSES.map((name) => series[name] ?? [])];
    this.plot.setData(this.data);
  }

  at(t) {
    this.shown = t;
    this.plot.redraw(false);
  }
}
