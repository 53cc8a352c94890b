// Jobs as a Gantt chart: one row a job, one bar a phase, named in words too.
import { clock, duration, make, svg } from "./text.js";

const ROW = 22, LEFT = 118, TOP = 20, MOST = 60;
const NAMES = { run: "runs", in: "stages in", out: "stages out", io: "file system" };
const BARS = { run: "run-bar", in: "staging-bar", out: "staging-bar", io: "io-bar" };

function start(job) { return Math.min(...job.phases.map((phase) => phase[1])); }

function state(job) {
  const open = job.phases.filter((phase) => phase[2] === null).map((phase) => NAMES[phase[0]]);
  return job.ended ? "ended" : open.join(", ") || "waits";
}

// The jobs that fit, and the time they span.
function choose(model, window) {
  const all = [...model.rows("jobs")].filter(([, job]) => job.phases.length);
  all.sort(([, a], [, b]) => Boolean(a.ended) - Boolean(b.ended) || start(b) - start(a));
  const now = model.t;
  const recent = all.filter(([, job]) => !job.ended || Math.max(...job.phases.map((phase) => phase[2] ?? now)) > now - window);
  const shown = recent.slice(0, MOST).sort(([, a], [, b]) => start(a) - start(b));
  const first = Math.min(now, ...shown.map(([, job]) => start(job)));
  return { shown, more: all.length - shown.length, first: Math.max(first, now - window), now };
}

export function drawGantt(container, model, window, select) {
  const { shown, more, first, now } = choose(model, window);
  const width = Math.max(container.clientWidth - 4, 320);
  const left = width < 480 ? 84 : LEFT;
  const span = Math.max(now - first, 1000);
  const x = (t) => left + ((Math.min(Math.max(t, first), now) - first) / span) * (width - left - 10);
  const height = TOP + Math.max(1, shown.length) * ROW + 4;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${shown.length} jobs over ${duration(span)}` });
  const ticks = width < 480 ? 3 : 5;
  for (let n = 0; n <= ticks; n += 1) {
    const t = first + (span * n) / ticks;
    chart.append(svg("line", { x1: x(t), x2: x(t), y1: TOP - 4, y2: height }));
    const anchor = n === ticks ? "end" : n === 0 ? "start" : "middle";
    chart.append(svg("text", { x: x(t), y: 12, "text-anchor": anchor, class: "axis" }, clock(t)));
  }
  shown.forEach(([id, job], row) => {
    const y = TOP + row * ROW;
    const room = Math.floor(left / 7) - 1;
    const label = svg("text", { x: 0, y: y + 14 }, id.length > room ? `${id.slice(0, room - 1)}…` : id);
    const group = svg("g", { tabindex: 0, role: "button", "aria-label": `job ${id}, ${state(job)}` }, label);
    for (const [kind, from, to] of job.phases) {
      const end = to ?? now;
      if (end < first) continue;
      const thin = kind === "io";
      const bar = svg("rect", { x: x(from), y: y + (kind === "run" ? 7 : thin ? 11 : 3), width: Math.max(1.5, x(end) - x(from)), height: kind === "run" ? 9 : thin ? 5 : 6, rx: 2, class: BARS[kind] });
      bar.append(svg("title", {}, `${id} ${NAMES[kind]} ${clock(from)} to ${to === null ? "now" : clock(to)}, ${duration(end - from)}`));
      group.append(bar);
    }
    const pick = () => select(id);
    group.addEventListener("click", pick);
    group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } });
    chart.append(group);
  });
  chart.append(svg("line", { x1: x(now), x2: x(now), y1: TOP - 4, y2: height, class: "now" }));
  const at = [...container.querySelectorAll("g")].indexOf(document.activeElement);
  container.replaceChildren(shown.length ? chart : make("p", { class: "words" }, "No jobs so far."));
  if (at >= 0) container.querySelectorAll("g")[at]?.focus({ preventScroll: true });
  return more;
}

export { state as jobState };
