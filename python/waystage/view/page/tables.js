// Lists and tables: links, flows, decisions, storage, controllers, events.
import { CLASSES } from "./model.js";
import { busier, words } from "./topology.js";
import { bytes, clock, duration, keyed, make, percent, rate, swatch } from "./text.js";

const LINKS = 12, FLOWS = 100, DECISIONS = 60, LISTED = 60;
// A cell whose column is named where a narrow screen has no head row.
const cell = (label, attributes, ...children) => make("td", { "data-label": label, ...attributes }, make("div", {}, ...children));
const $ = (id) => document.getElementById(id);

function bar(parts, capacity, total) {
  const box = make("span", { class: "bar", "aria-hidden": "true" });
  const counted = parts.reduce((sum, part) => sum + part, 0);
  const add = (name, value) => {
    if (value <= 0 || capacity <= 0) return;
    const piece = make("i", { class: name });
    piece.style.width = `${Math.min(100, (100 * value) / capacity)}%`;
    box.append(piece);
  };
  CLASSES.forEach((name, at) => add(name, parts[at] ?? 0));
  add("all", total - counted);
  return box;
}

export function drawLinks(model, select) {
  const topology = model.topology;
  const capacity = new Map((topology?.links ?? []).map((link) => [link.id, link]));
  const found = [];
  let down = 0;
  for (const [id, row] of model.rows("links")) {
    const link = capacity.get(id);
    if (!link) continue;
    if (row.down) { found.push([`${id} down`, { id, down: row.down, share: 2 }]); down += row.down; }
    for (const way of ["ab", "ba"]) {
      if (row[way]) found.push([`${id} ${way}`, { id, from: way === "ab" ? link.a : link.b, to: way === "ab" ? link.b : link.a, use: row[way], bps: link.bps, share: row[way][0] / link.bps }]);
    }
  }
  found.sort(([, a], [, b]) => b.share - a.share);
  keyed($("links-table").tBodies[0], found.slice(0, LINKS), (key, row) => {
    const button = make("button", { type: "button" }, row.id);
    button.addEventListener("click", () => select("link", row.id));
    if (row.down) return make("tr", {}, cell("Link", {}, button), cell("State", { class: "bad" }, row.down > 1 ? `✕ ${row.down} down` : "✕ down"), cell("Use", { class: "n" }, "–"), cell("Classes", {}, "–"));
    const parts = row.use.slice(1);
    return make("tr", {}, cell("Link", {}, button), cell("Direction", {}, `${row.from} → ${row.to}`), cell("Use", { class: "n" }, percent(row.share)),
      cell("Classes", {}, bar(parts, row.bps, row.use[0]), make("span", { class: "words" }, words(parts, row.bps) || rate(row.use[0]))));
  });
  $("links-more").textContent = found.length === 0 ? "No link is in use." : found.length > LINKS ? `and ${found.length - LINKS} more directions in use` : "";
}

export function describeLink(model, id) {
  const link = model.topology?.links.find((one) => one.id === id);
  if (!link) return [];
  const row = model.rows("links").get(id) ?? {};
  const lines = [`capacity ${rate(link.bps)} each way`];
  if (row.down) lines.push(row.down > 1 ? `${row.down} links are down` : "the link is down");
  for (const [way, from, to] of [["ab", link.a, link.b], ["ba", link.b, link.a]]) {
    const use = row[way];
    lines.push(`${from} → ${to}: ${use ? `${rate(use[0])}, ${percent(use[0] / link.bps)}${words(use.slice(1), link.bps) ? ` (${words(use.slice(1), link.bps)})` : ""}` : "idle"}`);
  }
  return lines;
}

export function drawFlows(model, now) {
  const all = [...model.rows("flows")].filter(([, flow]) => flow.class);
  all.sort(([, a], [, b]) => Boolean(a.ended) - Boolean(b.ended) || b.rate - a.rate || b.started - a.started);
  const recent = all.filter(([, flow]) => !flow.ended || now - flow.ended < 60000);
  keyed($("flows-table").tBodies[0], recent.slice(0, FLOWS), (id, flow) => {
    const share = flow.bytes > 0 ? Math.min(1, flow.done / flow.bytes) : null;
    const done = share === null ? make("span", {}, bytes(flow.done)) : make("span", {}, make("progress", { max: 1, value: share, "aria-label": `done of ${id}` }), ` ${percent(share)} of ${bytes(flow.bytes)}`);
    const outcome = flow.ended ? make("span", { class: flow.outcome === "done" ? "here" : "bad" }, `${flow.outcome === "done" ? "✓" : "✕"} ${flow.outcome} in ${duration(flow.ended - flow.started)}`) : rate(flow.rate);
    const asked = flow.asked ? `${flow.asked}${flow.pending ? " (not yet kept)" : ""}` : "–";
    return make("tr", {}, cell("Class", { class: "short" }, swatch(flow.class), flow.class), cell("Job", {}, flow.job ?? "–", flow.user ? make("div", { class: "words" }, flow.user) : null),
      cell("From → to", {}, `${flow.from} → ${flow.to}`, flow.engine ? make("div", { class: "words" }, `${flow.engine} ${id}`) : make("div", { class: "words" }, id)),
      cell("Done", {}, done), cell("Rate", { class: "n" }, outcome), cell("Limited by", {}, flow.ended ? "–" : flow.limit ?? "–"), cell("Asked for", {}, asked));
  });
  const running = model.status.flows ?? 0;
  $("flows-note").textContent = `${running} in progress`;
  $("flows-more").textContent = recent.length === 0 ? "No flows." : recent.length > FLOWS ? `and ${recent.length - FLOWS} more` : "";
}

export function drawDecisions(model) {
  const all = [...model.rows("decisions")].sort(([, a], [, b]) => b.t - a.t);
  const arrow = () => make("span", { class: "arrow", "aria-hidden": "true" }, "→");
  keyed($("decisions-list"), all.slice(0, DECISIONS), (id, row) => {
    const rules = row.refused ? make("span", { class: "bad" }, `✕ refused by ${row.refused}`) : row.rules ? make("span", { class: "here" }, row.rules.switches ? `✓ ${row.rules.messages} messages to ${row.rules.switches} switches in ${row.rules.ms} ms` : "✓ in force") : make("span", { class: "words" }, "no rules so far");
    const item = make("li", { class: "chain" }, make("span", { class: "when" }, clock(row.t, true)), " ", make("b", {}, row.cause?.type ?? "an earlier event"), row.cause ? ` ${row.cause.text} ` : " ", arrow(), make("b", {}, row.policy));
    row.actions.forEach((action) => item.append(" ", arrow(), action));
    if (row.more) item.append(` and ${row.more} more actions`);
    item.append(" ", arrow(), rules);
    if (row.reason) item.append(make("div", { class: "words" }, `Reason: ${row.reason}`));
    return item;
  });
  if (!all.length) $("decisions-list").replaceChildren(make("li", { class: "words" }, "No decisions so far."));
}

export function drawStorage(model) {
  const use = new Map();
  for (const flow of model.rows("flows").values()) {
    if (flow.ended || !flow.targets?.length) continue;
    for (const target of flow.targets) {
      const known = use.get(target) ?? { flows: 0, rate: 0 };
      use.set(target, { flows: known.flows + 1, rate: known.rate + flow.rate / flow.targets.length });
    }
  }
  const groups = new Map([...model.rows("storage")].map(([name, row]) => [name, { row, targets: Array.from({ length: Math.min(row.targets, 256) }, (_, n) => `${name}:${n}`) }]));
  for (const target of use.keys()) {
    const name = target.slice(0, target.lastIndexOf(":"));
    if (!groups.has(name)) groups.set(name, { row: null, targets: [] });
    const group = groups.get(name);
    if (!group.targets.includes(target)) group.targets.push(target);
  }
  const parts = [];
  for (const [name, { row, targets }] of groups) {
    const rated = row?.rate ? `, ${rate(row.rate)} for one loader` : "";
    const list = make("p", {}, make("b", {}, name), ` ${row ? `${row.targets} storage targets${rated}` : ""} `);
    for (const target of targets) {
      const found = use.get(target);
      const number = target.slice(target.lastIndexOf(":") + 1);
      list.append(make("span", { class: `target${found ? " busy" : ""}`, title: found ? `${target}: ${found.flows} flows, ${rate(found.rate)}` : `${target}: idle` }, found ? `${number}: ${rate(found.rate)}` : number));
    }
    parts.push(list);
  }
  for (const [peer, row] of model.rows("wide")) parts.push(make("p", {}, make("b", {}, peer), ` wide-area path over ${row.host || "?"}, ${rate(row.rate)}, RTT ${Math.round(row.rtt * 1000)} ms`));
  if (!parts.length) parts.push(make("p", { class: "words" }, "No file system is declared, and no flow names a storage target."));
  $("storage-body").replaceChildren(...parts);
  keyed($("io-table").tBodies[0], [...model.rows("io")].slice(0, LISTED), (app, row) => {
    const servers = make("div");
    for (const one of row.servers) servers.append(make("div", { class: one.lost ? "bad" : "" }, `${one.lost ? "✕ lost " : one.used ? "" : "(not used) "}${one.name}: ${bytes(one.bytes)}, ${one.busy.toFixed(1)} s of service${one.queue ? `, ${bytes(one.queue)} queued` : ""}`));
    return make("tr", {}, cell("Application", {}, app, make("div", { class: "words" }, `${row.ranks} ranks on ${row.hosts} hosts${row.job ? `, job ${row.job}` : ""}`)), cell("Now", {}, row.doing, row.waited ? make("div", { class: "words" }, `waited ${row.waited} s so far`) : null), cell("Operation", { class: "n" }, row.op), cell("Aggregators", {}, servers));
  });
  $("io-table").hidden = model.rows("io").size === 0;
}

export function drawControllers(model, now, live) {
  const all = [...model.rows("publishers")].filter(([, row]) => row.role !== "publisher");
  all.sort(([a, one], [b, two]) => two.role.localeCompare(one.role) || one.present - two.present || a.localeCompare(b, "en", { numeric: true }));
  keyed($("controllers-list"), all.slice(0, LISTED).map(([name, row]) => [name, { ...row, ago: row.present ? 0 : Math.round((now - row.since) / 1000) }]), (name, row) =>
    !live ? make("li", {}, `${row.role} `, make("b", {}, name)) : make("li", {}, make("span", { class: row.present ? "here" : row.since ? "gone" : "words" }, row.present ? "● here" : row.since ? "✕ gone" : "○ not seen"), ` ${row.role} `, make("b", {}, name), make("span", { class: "words" }, !row.since ? " since this view began" : row.present ? ` since ${clock(row.since)}` : ` since ${clock(row.since)}, ${duration(row.ago * 1000)} ago: its links and flows are shown as last heard`)));
  if (!all.length) $("controllers-list").replaceChildren(make("li", { class: "words" }, "None has published anything so far."));
  return all.filter(([, row]) => row.role === "controller" && !row.present && row.since).map(([name]) => name);
}

export function drawEvents(model, filter) {
  const words = filter.toLowerCase();
  const found = model.events.filter((event) => !words || `${event.type} ${event.text} ${event.source}`.toLowerCase().includes(words));
  keyed($("events-list"), found.slice(-LISTED * 2).reverse().map((event, at) => [`${event.t} ${event.source} ${event.type} ${event.text} ${at}`, event]), (_, event) =>
    make("li", { class: event.bad ? "trouble" : "" }, make("time", {}, clock(event.t, true)), make("span", { class: event.bad ? "bad" : "" }, `${event.bad ? "! " : ""}${event.type}`), make("span", {}, event.text)));
  const counts = model.counts;
  $("events-note").textContent = `${(counts.events ?? 0).toLocaleString("en")} so far${counts.dropped ? `, ${counts.dropped} of telemetry dropped` : ""}${counts.lost ? `, ${counts.lost} gaps` : ""}`;
}

export { busier };
