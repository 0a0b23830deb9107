// The page: the list of runs, the selected ones, and their updates.
import { h, fill, colour, count, number, percent, duration, ago } from "./elements.js";
import { repaint } from "./charts.js";
import { ClassesPanel } from "./classes.js";
import { titled, CurvesPanel, RanksPanel, MembersPanel, CheckpointsPanel, LogsPanel, SettingsPanel } from "./panels.js";

const $ = (id) => document.getElementById(id);
/** Most runs that are compared, and the number of points of all their curves together. */
const COMPARED_MAX = 64;
const POINTS_IN_ALL = 8192;

const state = {
  runs: [],
  /** The run whose details are shown. */
  focus: null,
  /** The runs whose curves are shown, with their colours. */
  selected: new Map(),
  /** What was received of each selected run. */
  data: new Map(),
  tab: "curves",
  panel: null,
  options: { axis: "step", smoothing: 0, log: false, band: true },
};

const TABS = [["curves", "Curves"], ["classes", "Classes"], ["ranks", "Ranks"], ["members", "Members"], ["checkpoints", "Checkpoints"], ["logs", "Logs"], ["settings", "Run file"]];
/** The views that fetch what they show; the curves need the series of the runs, the remaining views the details of one. */
const FETCHING = ["logs", "settings"];
const needsDetail = (tab) => tab !== "curves" && !FETCHING.includes(tab);

async function get(path, query = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { credentials: "same-origin" });
  if (answer.status === 401) { location.reload(); return null; }
  return answer.ok ? answer.json() : null;
}

// The list of runs.

function select(id, on) {
  if (on && !state.selected.has(id)) {
    if (state.selected.size >= COMPARED_MAX) return;
    const used = new Set(state.selected.values());
    let at = 0;
    while (used.has(at)) at += 1;
    state.selected.set(id, at);
  } else if (!on && state.selected.size > 1) {
    state.selected.delete(id);
    state.data.delete(id);
    if (state.focus === id) state.focus = [...state.selected.keys()].at(-1);
  }
}

function focus(id) {
  const compared = state.selected.has(id);
  if (!compared && state.selected.size === 1) { state.selected.clear(); state.data.clear(); }
  select(id, true);
  state.focus = id;
  document.body.classList.remove("shows-runs");
  $("open-runs").setAttribute("aria-expanded", "false");
  changed();
}

/** Draws after a choice of the user. */
function changed() {
  const query = new URLSearchParams({ run: state.focus ?? "", tab: state.tab, with: JSON.stringify([...state.selected.keys()].filter((id) => id !== state.focus)) });
  history.replaceState(null, "", `#${query}`);
  drawRuns();
  drawFocus();
  refresh();
}

/** Returns the runs that match the filter. */
function listed() {
  const text = $("filter").value.toLowerCase();
  return state.runs.filter((run) => `${run.id} ${run.name} ${run.phase}`.toLowerCase().includes(text));
}

function drawRuns() {
  const shown = listed();
  const active = document.activeElement?.dataset?.key;
  fill($("runs"), ...shown.map((run) => {
    const at = state.selected.get(run.id);
    const share = run.steps > 0 ? Math.min(1, run.step / run.steps) : 0;
    return h("li", { class: run.id === state.focus ? "run focused" : "run" },
      h("input", { type: "checkbox", checked: at !== undefined, "data-key": `c${run.id}`, "aria-label": `Compare ${run.id}`,
        style: at === undefined ? {} : { "--colour": colour(at) }, onchange: (event) => { select(run.id, event.target.checked); changed(); } }),
      h("button", { class: "run-button", "data-key": `b${run.id}`, "aria-current": run.id === state.focus ? "true" : null, onclick: () => focus(run.id) },
        h("span", { class: "run-line" }, h("span", { class: "run-id", text: run.id }), h("span", { class: `phase ${phaseClass(run.phase)}`, text: phaseText(run.phase) })),
        h("span", { class: "run-line muted" },
          h("span", { text: run.loss === null ? (run.problem ? "unreadable" : "no step yet") : `loss ${number(run.loss)}` }),
          h("span", { text: run.phase === "running" && run.left_s !== null ? `${duration(run.left_s)} left` : ago(run.updated_t) })),
        h("span", { class: "progress", role: "img", "aria-label": `${Math.round(100 * share)} % of the steps` }, h("span", { class: phaseClass(run.phase), style: { width: `${100 * share}%` } }))));
  }));
  if (active) document.querySelector(`[data-key="${CSS.escape(active)}"]`)?.focus();
  if (shown.length === 0 && state.runs.length > 0) fill($("runs"), h("li", { class: "muted note", text: "No run matches." }));
}

const phaseClass = (phase) => (phase.startsWith("ended") ? "ended" : phase);
const phaseText = (phase) => (phase.startsWith("ended") ? "ended" : phase);

// The run in focus.

function tile(label, value, more = "") {
  return h("div", { class: "tile" }, h("span", { class: "tile-label", text: label }), h("span", { class: "tile-value", text: value }), h("span", { class: "muted tile-more", text: more }));
}

/** The step of the model whose evaluation is shown. */
const evaluated = (run) => (run.evaluated_steps ? ` after step ${count(run.evaluated_steps)}${run.best_by ? ` (best ${titled(run.best_by)})` : ""}` : "");

function drawFocus() {
  const run = state.runs.find((run) => run.id === state.focus);
  $("empty").hidden = state.runs.length > 0;
  $("content").hidden = !run;
  if (!run) { document.title = "ronde"; return; }
  const share = run.steps > 0 ? Math.floor(100 * run.step / run.steps) : 0;
  document.title = run.phase === "running" ? `${share} % ${run.id} – ronde` : `${run.id} – ronde`;
  $("run-name").textContent = run.id;
  $("run-phase").className = `phase ${phaseClass(run.phase)}`;
  $("run-phase").textContent = run.phase;
  $("run-plan").textContent = [run.name !== run.id ? run.name : "", run.plan ? `plan ${run.plan.slice(0, 8)}` : "",
    run.parameters ? `${count(run.parameters)} parameters` : "", run.damaged_lines ? `${count(run.damaged_lines)} damaged lines` : "",
    state.data.get(run.id)?.skipped_updates ? `no update in ${state.data.get(run.id).skipped_updates}` : ""].filter(Boolean).join(" · ");
  const failure = run.problem ?? (run.phase === "failed" ? run.failure : null);
  const help = failure && !run.problem && run.help ? `help: ${run.help}` : "";
  $("run-failure").hidden = !failure;
  $("run-failure").textContent = [failure, help].filter(Boolean).join("\n");
  const evaluation = run.evaluation ?? {};
  const metric = ["accuracy", ...Object.keys(evaluation).filter((name) => name !== "loss")].find((name) => evaluation[name] !== undefined && evaluation[name] !== null);
  const took = state.data.get(run.id)?.taken;
  fill($("tiles"),
    tile("Step", `${count(run.step)}`, run.steps ? `of ${count(run.steps)} · ${share} %` : ""),
    tile("Epoch", count(run.epochs ? Math.min(run.epoch + 1, run.epochs) : run.epoch + 1), run.epochs ? `of ${count(run.epochs)}` : ""),
    tile("Loss", number(run.loss), evaluation.loss !== undefined ? `evaluated ${number(evaluation.loss)}${evaluated(run)}` : ""),
    ...(metric ? [tile(titled(metric), metric.startsWith("accuracy") ? percent(evaluation[metric]) : number(evaluation[metric]), `evaluation${evaluated(run)}`)] : []),
    tile("Throughput", run.rate === null ? "–" : `${number(run.rate)} /s`, run.unit),
    run.phase === "running" ? tile("Time left", duration(run.left_s), took ? `after ${duration(took)}` : "") : tile("Duration", duration(took), run.started_t ? `started ${ago(run.started_t)}` : ""),
    tile("Workers", count(run.world_size), run.checkpoint !== null ? `checkpoint ${count(run.checkpoint)}` : "no checkpoint"));
}

function drawTabs() {
  const list = document.querySelector(".tabs");
  fill(list, ...TABS.map(([id, text]) => h("button", {
    role: "tab", id: `tab-${id}`, "aria-selected": String(state.tab === id), "aria-controls": "panel", tabindex: state.tab === id ? "0" : "-1",
    onclick: () => openTab(id),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = (TABS.findIndex(([known]) => known === id) + step + TABS.length) % TABS.length;
      openTab(TABS[at][0]);
      $(`tab-${TABS[at][0]}`).focus();
    }, text })));
  $("panel").setAttribute("aria-labelledby", `tab-${state.tab}`);
  // On a narrow screen not all tabs are visible.
  $(`tab-${state.tab}`).scrollIntoView({ block: "nearest", inline: "nearest" });
}

function openTab(id) {
  state.tab = TABS.some(([known]) => known === id) ? id : "curves";
  drawTabs();
  state.panel?.destroy();
  const panels = {
    curves: () => new CurvesPanel(state.options),
    classes: () => new ClassesPanel(),
    ranks: () => new RanksPanel(),
    members: () => new MembersPanel(),
    checkpoints: () => new CheckpointsPanel(),
    logs: () => new LogsPanel((text, rank) => get("/api/logs", { id: state.focus, text, rank })),
    settings: () => new SettingsPanel((run) => get("/api/settings", { id: run })),
  };
  state.panel = panels[state.tab]();
  fill($("panel"), state.panel.element);
  changed();
}

function drawPanel() {
  const focused = state.data.get(state.focus);
  const chosen = [...state.selected].map(([id, at]) => ({ id, at, data: state.data.get(id) })).filter((run) => run.data);
  if (state.tab === "curves") {
    state.panel.update(chosen.map(({ id, at, data }) => ({ name: id, colour: colour(at), steps: data.steps, evaluations: data.evaluations, start: data.start })));
  } else if (state.tab === "settings") {
    state.panel.update([state.focus, ...[...state.selected.keys()].filter((id) => id !== state.focus)].map((id) => ({ id, name: id })));
  } else if (state.tab === "logs") {
    if (state.focus) state.panel.update();
  } else if (focused?.detail) {
    state.panel.update(focused.detail);
  }
}

// Updates.

/** Appends the new part of the series of a run to what the page has. */
function joined(old, fresh) {
  if (!old || old.width !== fresh.width || fresh.from === 0) return fresh;
  const kept = old.step.findIndex((step) => step >= fresh.from);
  const join = (before, after) => (Array.isArray(before) ? [...(kept < 0 ? before : before.slice(0, kept)), ...after]
    : Object.fromEntries(Object.keys(before).map((name) => [name, join(before[name], after[name])])));
  return { ...Object.fromEntries(Object.entries(fresh).map(([name, value]) => [name, typeof value === "object" ? join(old[name], value) : value])) };
}

let loading = false;
let again = false;
/** Milliseconds between two drawings while the data of many runs arrive. */
const DRAW_EVERY_MS = 500;

/** Fetches the selected runs that have changed and draws them; calls during a fetch lead to one more. */
async function refresh() {
  if (loading) { again = true; return; }
  loading = true;
  const points = Math.max(128, Math.min(1024, 2 ** Math.floor(Math.log2(POINTS_IN_ALL / Math.max(1, state.selected.size)))));
  let drawn = performance.now();
  await Promise.all([...state.selected.keys()].map(async (id) => {
    const run = state.runs.find((run) => run.id === id);
    const old = state.data.get(id);
    const detail = needsDetail(state.tab) && id === state.focus;
    if (old && old.version === run?.version && old.points === points && (!detail || old.detail)) return;
    const query = { id, points };
    if (old && old.points === points && old.steps.step.length > 0) Object.assign(query, { from: old.steps.step.at(-1), width: old.steps.width });
    if (detail) query.detail = 1;
    const answer = await get("/api/run", query).catch(() => null);
    if (!answer || !state.selected.has(id)) return;
    const steps = joined(old?.points === points ? old.steps : null, answer.steps);
    const start = answer.summary.started_t ?? steps.t[0] ?? 0;
    state.data.set(id, { ...answer, steps, points, start, version: answer.summary.version, taken: (steps.t.at(-1) ?? start) - start, detail: answer.detail ?? (detail ? null : undefined) });
    if (performance.now() - drawn > DRAW_EVERY_MS) { drawPanel(); drawn = performance.now(); }
  }));
  drawFocus();
  drawPanel();
  loading = false;
  if (again) { again = false; refresh(); }
}

async function loadRuns() {
  const answer = await get("/api/runs");
  if (!answer) return;
  state.runs = answer.runs;
  $("folder").textContent = answer.folder;
  $("problem").hidden = !answer.problem;
  $("problem").textContent = answer.problem ? `cannot read the folder: ${answer.problem}` : "";
  for (const id of [...state.selected.keys()]) {
    if (!state.runs.some((run) => run.id === id)) { state.selected.delete(id); state.data.delete(id); }
  }
  if (!state.runs.some((run) => run.id === state.focus)) state.focus = [...state.selected.keys()].at(-1) ?? state.runs[0]?.id ?? null;
  if (state.focus) select(state.focus, true);
}

function follow() {
  const source = new EventSource("/api/stream");
  const live = (text, on) => { $("live").textContent = text; $("live").classList.toggle("on", on); };
  source.onopen = () => live("live", true);
  source.onerror = () => live("reconnecting", false);
  let busy = false;
  let missed = false;
  const update = async () => {
    if (busy) { missed = true; return; }
    busy = true;
    await loadRuns().catch(() => {});
    drawRuns();
    drawFocus();
    await refresh();
    busy = false;
    if (missed) { missed = false; update(); }
  };
  source.onmessage = update;
}

async function start() {
  const query = new URLSearchParams(location.hash.slice(1));
  state.focus = query.get("run") || null;
  try { JSON.parse(query.get("with") ?? "[]").forEach((id) => select(String(id), true)); } catch { /* The address was edited. */ }
  await loadRuns();
  $("filter").addEventListener("input", drawRuns);
  $("all").addEventListener("click", () => { listed().forEach((run) => select(run.id, true)); changed(); });
  $("clear").addEventListener("click", () => { [...state.selected.keys()].filter((id) => id !== state.focus).forEach((id) => select(id, false)); changed(); });
  $("theme").addEventListener("click", () => { window.switchTheme(); repaintAll(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaintAll);
  $("open-runs").addEventListener("click", () => {
    const shown = document.body.classList.toggle("shows-runs");
    $("open-runs").setAttribute("aria-expanded", String(shown));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.body.classList.remove("shows-runs");
    if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement?.tagName)) { event.preventDefault(); $("filter").focus(); }
  });
  openTab(query.get("tab") ?? "curves");
  follow();
}

function repaintAll() {
  const panel = state.panel;
  repaint(panel?.cards ? [...(panel.cards.values?.() ?? []), panel.memory].filter(Boolean) : []);
}

start();
