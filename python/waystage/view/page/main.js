// The page: session, stream of frames, time, and what is drawn when.
import { CLASSES, Model } from "./model.js";
import { drawGantt, jobState } from "./gantt.js";
import { Load } from "./load.js";
import { drawControllers, drawDecisions, drawEvents, drawFlows, drawLinks, drawStorage, describeLink } from "./tables.js";
import { Graph } from "./topology.js";
import { clock, duration, make, percent, rate, svg, swatch, timesAreSinceEpoch } from "./text.js";

const $ = (id) => document.getElementById(id);
const TABLES_MS = 500, TIMELINE_MS = 5000, RETRY_MS = 5000, PLAY_MS = 250, SILENT_MS = 40000;
const live = new Model(), past = new Model();
let shown = live, about = { mode: "live" }, timeline = { span: null, marks: [], series: { t: [] } };
const ENDED = "The run has ended; `waystage view` with the directory of its results shows it again.";
let stream = null, ended = false, heard = 0, chosen = null, dirty = new Set(), asking = null, playing = null, connected = false;

const graph = new Graph($("graph"), (kind, id) => select(kind, id));
const load = new Load($("load"), (t) => goTo(t));

// -- session and stream --------------------------------------------------------------------------

async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", ...options });
  if (response.ok) return response.status === 204 ? null : response.json();
  let reason = response.statusText;
  try { reason = (await response.json()).error ?? reason; } catch { /* no JSON */ }
  throw Object.assign(new Error(reason), { status: response.status });
}

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

function connection(state, text) {
  connected = state === "ok";
  $("connection").className = state;
  $("connection-text").textContent = text;
}

async function session() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname);
    await ask("/api/session", { method: "POST", body: token });
  }
}

async function begin() {
  try {
    await session();
    about = await ask("/api/about");
  } catch (error) {
    connection("wrong", error.status === 401 ? "no access" : "no connection");
    notice(`${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`);
    if (error.status !== 401) setTimeout(begin, RETRY_MS);
    return;
  }
  timesAreSinceEpoch(about.epoch ?? true);
  document.title = `${about.title} – Waystage`;
  $("title").textContent = about.title;
  notice(about.note ? `This run is not valid: ${about.note}.` : "");
  await readTimeline();
  if (about.mode === "recorded") {
    connection("ok", "recorded run");
    $("live").hidden = true;
    goTo(timeline.span?.[0] ?? 0);
  } else follow();
}

function follow() {
  stream?.close();
  stream = new EventSource("/api/frames");
  connection("", "connecting");
  stream.onopen = () => { heard = Date.now(); connection("ok", about.mode === "run" ? "run in progress" : "live"); };
  stream.onmessage = (message) => { heard = Date.now(); receive(JSON.parse(message.data)); };
  stream.addEventListener("end", (message) => {
    stream.close();
    stream = null;
    ended = true;
    connection("", message.data);
    notice(ENDED);
  });
  stream.onerror = async () => {
    if (ended) return;
    connection("wrong", "connection lost, trying again");
    if (stream.readyState !== EventSource.CLOSED) return;
    stream.close();
    try {
      const control = new AbortController();
      const response = await fetch("/api/frames", { signal: control.signal });
      if (!response.ok) notice(`${(await response.json()).error}; trying again.`);
      control.abort();
    } catch { /* the server is gone: say so above */ }
    setTimeout(follow, RETRY_MS);
  };
}

function receive(frame) {
  const changed = live.fold(frame);
  window.waystageFrames = (window.waystageFrames ?? 0) + 1;
  if (shown === live) draw(changed);
  notice(about.note ?? "");
}

// -- time ----------------------------------------------------------------------------------------

async function readTimeline() {
  try {
    timeline = await ask(`/api/timeline?points=${Math.min(1200, Math.max(200, $("load").clientWidth))}`);
  } catch { return; }
  load.set(timeline.series, timeline.marks ?? []);
  const names = timeline.marks ?? [];
  $("set-label").hidden = names.length < 2;
  if ($("set").options.length !== names.length) $("set").replaceChildren(...names.map((mark) => make("option", { value: mark.t }, mark.text)));
  if (shown === live) $("slider").value = 1000;
}

// A slider that is dragged asks for many times: only the last answer counts.
async function goTo(t) {
  if (!timeline.span) return;
  const [low, high] = timeline.span;
  t = Math.min(Math.max(t, low), high);
  asking?.abort();
  const control = (asking = new AbortController());
  try {
    const frame = await ask(`/api/at?t=${Math.round(t)}`, { signal: control.signal });
    past.fold(frame);
    past.t = t;
  } catch (error) {
    if (error.name !== "AbortError") notice(ended ? ENDED : `${error.message}.`);
    return;
  } finally { if (asking === control) asking = null; }
  shown = past;
  $("slider").value = high > low ? Math.round((1000 * (t - low)) / (high - low)) : 1000;
  $("live").disabled = false;
  load.at(t);
  const last = names(timeline.marks, t);
  if (last !== null) $("set").value = last;
  draw(new Set(["topology", "links", "jobs", "flows", "io", "storage", "wide", "decisions", "publishers", "events", "switches", "status"]), true);
}

function names(all, t) {
  let found = null;
  for (const mark of all ?? []) if (mark.t <= t) found = String(mark.t);
  return found;
}

function goLive() {
  pause();
  asking?.abort();
  shown = live;
  $("live").disabled = true;
  $("slider").value = 1000;
  load.at(null);
  draw(new Set(["topology", "links", "jobs", "flows", "io", "storage", "wide", "decisions", "publishers", "events", "switches", "status"]), true);
}

function pause() {
  clearInterval(playing);
  playing = null;
  $("play").textContent = "Play";
  $("play").setAttribute("aria-pressed", "false");
}

function play() {
  if (playing !== null) { pause(); return; }
  if (!timeline.span) return;
  $("play").textContent = "Pause";
  $("play").setAttribute("aria-pressed", "true");
  let t = shown === past && past.t < timeline.span[1] ? past.t : timeline.span[0];
  playing = setInterval(() => {
    if (asking) return;
    t += PLAY_MS * Number($("speed").value);
    if (t >= timeline.span[1]) { t = timeline.span[1]; pause(); if (about.mode !== "recorded") { goLive(); return; } }
    goTo(t);
  }, PLAY_MS);
}

// -- drawing -------------------------------------------------------------------------------------

let scheduled = false, tablesDue = 0;

// The graph with each frame; tables at most twice a second.
function draw(changed, now = false) {
  for (const section of changed) dirty.add(section);
  if (now) tablesDue = 0;
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    if (dirty.has("topology")) graph.show(shown.topology);
    if (["topology", "links", "jobs", "switches"].some((section) => dirty.has(section))) graph.update(shown);
    if (performance.now() < tablesDue) return;
    tablesDue = performance.now() + TABLES_MS;
    tables();
  });
}

function window_() {
  const span = timeline.span ? timeline.span[1] - timeline.span[0] : 0;
  if (about.mode !== "live") {
    const begun = (timeline.marks ?? []).filter((mark) => mark.t <= shown.t).at(-1);
    return begun ? Math.max(2000, shown.t - begun.t) : Math.max(span, 60000);
  }
  return 15 * 60000;
}

function tables() {
  const done = dirty;
  dirty = new Set();
  const has = (...sections) => sections.some((section) => done.has(section));
  if (has("links", "topology")) drawLinks(shown, select);
  if (has("jobs", "status")) {
    const more = drawGantt($("gantt"), shown, window_(), (id) => select("job", id));
    $("jobs-note").textContent = `${shown.status.running ?? 0} running, ${shown.status.staging ?? 0} staging`;
    $("jobs-more").textContent = more > 0 ? `${more} more ended before` : "";
  }
  if (has("flows", "status")) drawFlows(shown, shown.t);
  if (has("decisions")) drawDecisions(shown);
  if (has("flows", "storage", "wide", "io")) drawStorage(shown);
  if (has("publishers", "status")) {
    const gone = drawControllers(shown, shown.t, about.mode === "live");
    if (connected && shown === live && about.mode === "live") {
      $("connection").className = gone.length ? "wrong" : "ok";
      $("connection-text").textContent = gone.length ? `controller ${gone.join(", ")} is gone` : "live";
    }
  }
  if (has("events")) drawEvents(shown, $("filter").value);
  facts();
  $("topology-note").textContent = graph.describe(shown);
  $("graph").setAttribute("aria-label", `Topology in tiers. ${graph.describe(shown)}. The table below has the links as text.`);
  if (chosen) describe();
}

function facts() {
  const status = shown.status;
  const rows = [["time", clock(shown.t)]];
  if (status.plan) rows.push(["paths", status.plan]);
  for (const name of CLASSES) if (status.rates?.[name]) rows.push([name, rate(status.rates[name])]);
  $("facts").replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", {}, CLASSES.includes(name) ? swatch(name) : null, name), make("dd", {}, value))));
  $("time-now").textContent = shown === past ? `shows ${clock(shown.t)}${about.mode === "recorded" ? "" : ", not now"}` : "now";
}

// -- selection -----------------------------------------------------------------------------------

function select(kind, id) {
  chosen = { kind, id, hosts: null };
  graph.select(kind === "job" ? null : id);
  if (kind === "node" && id.endsWith(":hosts")) {
    ask(`/api/hosts?switch=${encodeURIComponent(id.slice(0, -6))}`).then((hosts) => { if (chosen?.id === id) { chosen.hosts = hosts; describe(); } }).catch((error) => notice(`${error.message}.`));
  }
  describe();
}

function describe() {
  const { kind, id } = chosen;
  const lines = [];
  if (kind === "link") lines.push(...describeLink(shown, id));
  if (kind === "job") {
    const job = shown.rows("jobs").get(id);
    if (job) {
      lines.push(`${jobState(job)}${job.user ? `, of ${job.user}` : ""}`, `on ${job.nodes.join(", ")}${job.count ? ` and ${job.count - job.nodes.length} more` : ""}`);
      for (const [what, from, to] of job.phases) lines.push(`${{ run: "runs", in: "stages in", out: "stages out", io: "file system" }[what]}: ${clock(from)}, ${duration((to ?? shown.t) - from)}${to === null ? " so far" : ""}`);
    } else lines.push("not known at this time");
  }
  if (kind === "node") {
    const node = shown.topology?.nodes.find((one) => one.id === id);
    if (node) lines.push(node.kind === "hosts" ? `${node.count} hosts at ${node.at}${node.storage ? `, ${node.storage} of them storage` : ""}` : node.kind === "switch" ? `switch of tier ${node.tier}` : `${node.kind} host${node.at ? ` at ${node.at}` : ""}`);
    if (shown.rows("switches").has(id)) lines.push(`down since ${clock(shown.rows("switches").get(id).down)}`);
    for (const [name, job] of shown.rows("jobs")) if (!job.ended && job.nodes.includes(id)) lines.push(`job ${name}: ${jobState(job)}`);
    const moving = (chosen.hosts ?? []).filter((host) => host.from?.[0] || host.to?.[0]);
    for (const host of moving) lines.push(`${host.host}${host.role === "storage" ? " (storage)" : ""}: sends ${rate(host.from?.[0])}, receives ${rate(host.to?.[0])}`);
    if (chosen.hosts) lines.push(`${chosen.hosts.length - moving.length} hosts are idle`);
    for (const link of (shown.topology?.links ?? []).filter((one) => one.a === id || one.b === id).slice(0, 8)) lines.push(...describeLink(shown, link.id).slice(1).map((text) => `${link.id} ${text}`));
  }
  const close = make("button", { type: "button", "aria-label": "Close" }, "✕");
  close.addEventListener("click", () => { chosen = null; graph.select(null); $("detail").hidden = true; });
  const text = JSON.stringify([id, lines]);
  if ($("detail").rowState === text && !$("detail").hidden) return;
  $("detail").rowState = text;
  $("detail").hidden = false;
  $("detail").replaceChildren(close, make("h3", {}, `${kind} ${id}`), ...lines.slice(0, 60).map((line) => make("div", {}, line)));
}

// -- controls ------------------------------------------------------------------------------------

function theme(name) {
  document.documentElement.dataset.theme = name;
  graph.theme();
  load.build();
  load.set(timeline.series, timeline.marks ?? []);
}

const DASHES = { mpi: "", staging: "7 3", io: "2 3", wan: "12 4" };
$("legend").replaceChildren(
  ...CLASSES.map((name) => {
    const line = svg("line", { x1: 1, x2: 31, y1: 6, y2: 6, "stroke-width": 4, "stroke-dasharray": DASHES[name] });
    line.style.stroke = `var(--${name})`;
    return make("li", {}, svg("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, line), name);
  }),
  make("li", { class: "words" }, "colour and dashes: the class that moves most; width: share of the link"),
);
const stored = (() => { try { return localStorage.getItem("waystage-theme"); } catch { return null; } })();
const dark = matchMedia("(prefers-color-scheme: dark)");
theme(stored ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!stored) theme(dark.matches ? "dark" : "light"); });
$("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("waystage-theme", next); } catch { /* no storage */ }
  theme(next);
});
$("slider").addEventListener("input", () => {
  pause();
  const value = Number($("slider").value);
  if (!timeline.span || (value >= 1000 && about.mode !== "recorded")) goLive();
  else goTo(timeline.span[0] + ((timeline.span[1] - timeline.span[0]) * value) / 1000);
});
$("play").addEventListener("click", play);
$("live").addEventListener("click", goLive);
$("set").addEventListener("change", () => { pause(); goTo(Number($("set").value) + 1); });
$("filter").addEventListener("input", () => drawEvents(shown, $("filter").value));
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = timeline.span ? Math.max(1000, (timeline.span[1] - timeline.span[0]) / 200) : 0;
  if (event.key === ",") { pause(); goTo((shown === past ? past.t : timeline.span?.[1] ?? 0) - step); }
  else if (event.key === ".") { pause(); goTo((shown === past ? past.t : timeline.span?.[1] ?? 0) + step); }
  else if (event.key === "l" && about.mode !== "recorded") goLive();
  else if (event.key === "p") play();
  else if (event.key === "Escape" && chosen) { chosen = null; graph.select(null); $("detail").hidden = true; }
});
setInterval(() => { if (about.mode !== "recorded" && connected) readTimeline(); }, TIMELINE_MS);
setInterval(() => { if (stream && Date.now() - heard > SILENT_MS && stream.readyState === EventSource.OPEN) follow(); }, TIMELINE_MS);
setInterval(() => { if (dirty.size) draw(new Set()); }, TABLES_MS);
window.waystage = { live, past, graph, shown: () => shown };
begin();
