// The topology in tiers: hosts below, switches above by their distance from the edge.
import cytoscape from "/page/vendor/cytoscape/cytoscape.esm.min.mjs";
import { CLASSES } from "./model.js";
import { rate, percent } from "./text.js";

const LINES = { mpi: "solid", staging: "dashed", io: "dotted", wan: "dashed" };
const DASHES = { mpi: [1, 0], staging: [9, 4], io: [2, 4], wan: [16, 5] };
const GAP = 46, TIER = 150;

const order = (a, b) => a.localeCompare(b, "en", { numeric: true });

// Positions by node id: hosts in a block below their edge switch, switches of a tier spread over the width.
export function positions(topology) {
  const at = new Map(), places = new Map(), tiers = new Map();
  for (const node of topology.nodes) {
    if (node.tier > 0) { if (!tiers.has(node.tier)) tiers.set(node.tier, []); tiers.get(node.tier).push(node.id); }
    else { const key = node.at ?? ""; if (!at.has(key)) at.set(key, []); at.get(key).push(node.id); }
  }
  for (const ids of tiers.values()) ids.sort(order);
  const edges = tiers.get(1) ?? [];
  let x = 0;
  const many = topology.nodes.length > 200;
  for (const edge of edges) {
    const hosts = (at.get(edge) ?? []).sort(order);
    const columns = Math.max(1, many ? Math.ceil(Math.sqrt(hosts.length / 2)) : hosts.length);
    hosts.forEach((host, n) => places.set(host, { x: x + (n % columns) * GAP, y: Math.floor(n / columns) * GAP }));
    places.set(edge, { x: x + ((columns - 1) * GAP) / 2, y: 0 });
    x += Math.max(columns, 1) * GAP + GAP * 0.6;
  }
  const width = Math.max(x - GAP * 1.6, GAP);
  // As high as a third of the width, so that many edge switches do not make it flat.
  const tier1 = Math.max(TIER, (0.33 * width) / Math.max(1, tiers.size));
  for (const edge of edges) places.get(edge).y = -Math.min(tier1, 2 * TIER) * 0.7;
  for (const [tier, ids] of tiers) {
    if (tier === 1) continue;
    const step = width / ids.length;
    ids.forEach((id, n) => places.set(id, { x: step * (n + 0.5), y: -0.7 * Math.min(tier1, 2 * TIER) - tier1 * (tier - 1) }));
  }
  let spare = 0;
  for (const node of topology.nodes) if (!places.has(node.id)) places.set(node.id, { x: (spare++) * GAP, y: GAP * 3 });
  return places;
}

// The busier direction of a link: its share, the class that moves most, and the parts.
export function busier(row, capacity) {
  const ab = row?.ab ?? [], ba = row?.ba ?? [];
  const way = (ba[0] ?? 0) > (ab[0] ?? 0) ? "ba" : "ab";
  const use = way === "ba" ? ba : ab;
  const parts = use.slice(1);
  let top = "";
  if (use[0] > 0) {
    const most = Math.max(0, ...parts);
    top = most > 0 ? CLASSES[parts.indexOf(most)] : "all";
  }
  return { way, total: use[0] ?? 0, share: capacity > 0 ? (use[0] ?? 0) / capacity : 0, top, parts };
}

export class Graph {
  constructor(container, select) {
    this.container = container;
    this.shape = null;
    this.state = new Map();
    this.cy = cytoscape({
      container, layout: { name: "preset" }, minZoom: 0.02, maxZoom: 4, boxSelectionEnabled: false, autoungrabify: true,
      hideEdgesOnViewport: true, textureOnViewport: false, pixelRatio: Math.min(2, devicePixelRatio || 1), style: [],
      userZoomingEnabled: true,
    });
    this.cy.on("tap", "node, edge", (event) => select(event.target.isEdge() ? "link" : "node", event.target.id()));
    new ResizeObserver(() => { this.cy.resize(); this.fit(); }).observe(container);
  }

  theme() {
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim();
    const style = [
      { selector: "node", style: { label: "data(label)", "font-size": 13, color: colour("ink"), "text-valign": "bottom", "text-margin-y": 3, "background-color": colour("card"), "border-width": 2, "border-color": colour("edge"), width: 20, height: 20, "min-zoomed-font-size": 7 } },
      { selector: "node.switch", style: { shape: "round-rectangle", width: 62, height: 24, "text-valign": "center", "text-margin-y": 0, "font-size": 12 } },
      { selector: "node.storage", style: { shape: "barrel", width: 26, height: 26 } },
      { selector: "node.hosts", style: { shape: "round-rectangle", width: 38, height: 38, "text-wrap": "wrap", "font-size": 11 } },
      { selector: "node.busy", style: { "background-color": colour("run") } },
      { selector: "node.down", style: { "border-color": colour("bad"), "border-width": 4, "border-style": "double", color: colour("bad") } },
      { selector: "edge", style: { width: "data(width)", "line-color": colour("idle"), "curve-style": "haystack", "haystack-radius": 0 } },
      { selector: "edge.all", style: { "line-color": colour("run"), "line-outline-width": 1, "line-outline-color": colour("edge") } },
      ...CLASSES.map((name) => ({ selector: `edge.${name}`, style: { "line-color": colour(name), "line-style": LINES[name], "line-dash-pattern": DASHES[name], "line-outline-width": name === "mpi" ? 1 : 0, "line-outline-color": colour("edge") } })),
      { selector: "edge.down", style: { "line-color": colour("bad"), "line-style": "dashed", "line-dash-pattern": [3, 7], width: 3, label: "down", "font-size": 12, color: colour("bad"), "text-background-color": colour("card"), "text-background-opacity": 1 } },
      { selector: ":selected", style: { "border-color": colour("accent"), "border-width": 5, "overlay-color": colour("accent"), "overlay-opacity": 0.2 } },
    ];
    this.cy.style(style);
  }

  show(topology) {
    if (topology === this.shape) return;
    this.shape = topology;
    this.state.clear();
    this.cy.elements().remove();
    if (!topology) return;
    const places = positions(topology);
    const crowded = topology.nodes.length > 200;
    this.capacity = new Map(topology.links.map((link) => [link.id, link.bps]));
    this.ends = new Map(topology.links.map((link) => [link.id, [link.a, link.b]]));
    this.cy.add([
      ...topology.nodes.map((node) => ({
        group: "nodes", classes: node.kind, position: { ...places.get(node.id) },
        data: { id: node.id, name: node.id, label: node.kind === "hosts" ? `${node.count} hosts` : crowded && node.tier === 0 ? "" : node.id },
      })),
      ...topology.links.map((link) => ({ group: "edges", data: { id: link.id, source: link.a, target: link.b, width: 1.5 } })),
    ]);
    this.theme();
    this.fit();
  }

  fit() { if (this.shape) this.cy.fit(undefined, 18); }

  // Classes and widths of what has changed; cytoscape draws once at the end.
  update(model) {
    if (!this.shape) return;
    const busy = new Set();
    for (const job of model.rows("jobs").values()) {
      if (!job.ended && job.phases.some((phase) => phase[2] === null)) for (const node of job.nodes) busy.add(node);
    }
    const downs = model.rows("switches");
    this.cy.batch(() => {
      for (const [id, bps] of this.capacity) {
        const row = model.rows("links").get(id);
        const { share, top } = busier(row, bps);
        const down = Boolean(row?.down);
        const width = top ? Math.round((2.5 + 7 * Math.min(1, share)) * 2) / 2 : 1.5;
        this.change(id, `${top} ${down ? "down" : ""}`.trim(), width);
      }
      for (const node of this.shape.nodes) {
        const down = downs.has(node.id);
        const words = [node.kind, busy.has(node.id) ? "busy" : "", down ? "down" : ""].filter(Boolean).join(" ");
        this.change(node.id, words, null, down ? `${node.id} ✕ down` : null);
      }
    });
  }

  change(id, classes, width, label) {
    const state = `${classes}|${width}`;
    if (this.state.get(id) === state) return;
    const first = !this.state.has(id);
    this.state.set(id, state);
    if (first && classes === "" && width === 1.5) return;
    const element = this.cy.getElementById(id);
    if (element.empty()) return;
    element.classes(classes);
    if (width !== null) element.data("width", width);
    else if (label) element.data("label", label);
    else if (element.hasClass("switch")) element.data("label", element.data("name"));
  }

  select(id) {
    this.cy.elements().unselect();
    if (id) this.cy.getElementById(id).select();
  }

  describe(model) {
    if (!this.shape) return "";
    let used = 0, down = 0;
    for (const row of model.rows("links").values()) { used += Boolean(row.ab || row.ba); down += row.down ?? 0; }
    return `${this.shape.name}: ${this.shape.hosts} hosts${this.shape.collapsed ? ", drawn by edge switch" : ""}, ${used} links in use${down ? `, ${down} down` : ""}`;
  }
}

export const words = (parts, capacity) => CLASSES.map((name, at) => (parts[at] > 0 ? `${name} ${rate(parts[at])} (${percent(parts[at] / capacity)})` : "")).filter(Boolean).join(", ");
