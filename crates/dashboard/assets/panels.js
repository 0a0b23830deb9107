// The views of a run: curves, ranks, members, checkpoints, logs, run file.
import { h, fill, table, note, colour, count, number, percent, short, bytes, duration, clock } from "./elements.js";
import { ChartCard } from "./charts.js";

/** The x values of a run: steps, or seconds since its first event. */
const xs = (axis, steps, times, start) => (axis === "time" ? times.map((t) => t - start) : steps);

/** `accuracy_top5` as `Accuracy top5`. */
export const titled = (name) => name.replaceAll("_", " ").replace(/^./, (sign) => sign.toUpperCase());

/** The curves of the selected runs. */
export class CurvesPanel {
  constructor(options) {
    this.options = options;
    this.cards = new Map();
    this.grid = h("div", { class: "charts" });
    const redraw = () => this.update(this.runs);
    const axis = (value, text) => h("label", { class: "segment" },
      h("input", { type: "radio", name: "axis", value, checked: options.axis === value, onchange: () => { options.axis = value; redraw(); } }),
      h("span", { text }));
    const check = (name, text) => h("label", { class: "check" },
      h("input", { type: "checkbox", checked: options[name], onchange: (event) => { options[name] = event.target.checked; redraw(); } }), text);
    this.element = h("div", {},
      h("div", { class: "toolbar" },
        h("div", { class: "segments", role: "group", "aria-label": "Horizontal axis" }, axis("step", "Steps"), axis("time", "Time")),
        h("label", { class: "range" }, "Smoothing",
          h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: options.smoothing,
            oninput: (event) => { options.smoothing = Number(event.target.value); redraw(); } })),
        check("log", "Logarithmic loss"), check("band", "Smallest and largest"),
        h("span", { class: "muted hint", text: "drag to zoom, double-click to reset" })),
      this.grid);
  }

  card(name, settings) {
    if (!this.cards.has(name)) {
      const card = new ChartCard(name, settings);
      this.cards.set(name, card);
      this.grid.append(card.element);
    }
    return this.cards.get(name);
  }

  /** `runs`: lists of { name, colour, steps, evaluations, start }. */
  update(runs) {
    this.runs = runs;
    const { axis, smoothing, log, band } = this.options;
    const curve = (run, range) => ({
      name: run.name, colour: run.colour, x: xs(axis, run.steps.step, run.steps.t, run.start),
      ...(Array.isArray(range) ? { mean: range } : range),
    });
    const measured = (run, value) => {
      const found = run.evaluations.filter((evaluation) => value(evaluation) !== undefined && value(evaluation) !== null);
      return {
        name: `${run.name}, evaluated`, colour: run.colour, dashed: true, points: true,
        x: xs(axis, found.map((evaluation) => evaluation.step), found.map((evaluation) => evaluation.t), run.start), mean: found.map(value),
      };
    };
    const draw = (title, curves, settings = {}, shown = {}) => this.card(title, settings).show(curves, { axis, smoothing, band, ...shown });
    draw("Loss", runs.flatMap((run) => [curve(run, run.steps.loss), measured(run, (evaluation) => evaluation.loss)]), {}, { log });
    const metrics = new Set(runs.flatMap((run) => run.evaluations.flatMap((evaluation) => Object.keys(evaluation.metrics))));
    for (const metric of [...metrics].sort()) {
      const isShare = metric.startsWith("accuracy");
      const title = titled(metric);
      draw(title, runs.map((run) => ({ ...measured(run, (evaluation) => evaluation.metrics[metric]), name: run.name, dashed: false })),
        { share: isShare, format: isShare ? percent : number, axis: isShare ? (value) => `${Number((100 * value).toPrecision(4))} %` : short });
    }
    draw("Throughput", runs.map((run) => curve(run, run.steps.rate)), { format: (value) => `${number(value)} /s`, zero: true });
    draw("Learning rate", runs.map((run) => curve(run, run.steps.learning_rate)), { zero: true }, { smoothing: 0 });
    draw("Gradient norm", runs.map((run) => curve(run, run.steps.gradient_norm)), { zero: true });
    const titles = ["Loss", ...[...metrics].sort().map(titled), "Throughput", "Learning rate", "Gradient norm"];
    for (const [title, card] of this.cards) {
      if (!titles.includes(title)) { card.destroy(); card.element.remove(); this.cards.delete(title); }
    }
    titles.forEach((title, at) => {
      const { element } = this.cards.get(title);
      if (this.grid.children[at] !== element) this.grid.insertBefore(element, this.grid.children[at] ?? null);
    });
  }

  destroy() { this.cards.forEach((card) => card.destroy()); }
}

const PHASES = [["compute", "Compute", "--phase-compute"], ["communicate", "Communication", "--phase-communicate"], ["wait", "Waiting for data", "--phase-wait"]];

/** The ranks of a run: how each one spends its time, its memory, its traffic. */
export class RanksPanel {
  constructor() {
    this.bars = h("section", { class: "card whole-lines" });
    this.grid = h("div", { class: "charts" });
    this.element = h("div", {}, this.bars, this.grid);
    this.cards = PHASES.map(([, title]) => new ChartCard(`${title}, seconds per step`, { format: duration, axis: duration, zero: true }));
    this.memory = new ChartCard("Memory", { format: bytes, axis: bytes, zero: true });
    fill(this.grid, ...[...this.cards, this.memory].map((card) => card.element));
  }

  update(detail) {
    const ranks = detail.ranks;
    const head = h("div", { class: "card-head" }, h("h2", { text: "Time of each rank" }),
      h("span", { class: "phase-legend" }, ...PHASES.map(([, title, variable]) =>
        h("span", {}, h("span", { class: "key", style: { "--colour": `var(${variable})` } }), title))));
    const straggler = detail.straggler ? note(`Straggler: ${detail.straggler}.`) : null;
    const rows = ranks.map((rank) => {
      const values = [rank.compute_s, rank.communicate_s, rank.wait_data_s];
      const total = values.reduce((sum, value) => sum + value, 0) || 1;
      const label = PHASES.map(([, title], at) => `${title} ${Math.round(100 * values[at] / total)} %`).join(", ");
      const process = detail.processes.find((process) => process.slot === rank.rank);
      return [`rank ${rank.rank}`,
        h("div", { class: "bar", role: "img", "aria-label": label, title: label }, ...PHASES.map(([, , variable], at) =>
          h("span", { style: { "--colour": `var(${variable})`, "flex-grow": String(Math.max(values[at] / total, 0.0001)) } }))),
        ...values.map((value) => `${Math.round(100 * value / total)} %`),
        bytes(rank.resident_bytes), bytes(rank.peak_bytes), bytes(rank.bytes_sent), rank.hidden_share === null ? "–" : `${Math.round(100 * rank.hidden_share)} %`,
        process ? `${process.host} (pid ${process.pid})` : "–"];
    });
    fill(this.bars, head, ...(straggler ? [straggler] : []), ranks.length === 0 ? note("No step is committed yet.") : table("Time of each rank",
      ["Rank", "Share of time", "Compute", "Comm.", "Data", "Memory", "Peak", "Sent", "Exchange hidden", "Process"], rows, [2, 3, 4, 5, 6, 7, 8]));
    const curves = (name) => ranks.map((rank) => ({ name: `rank ${rank.rank}`, colour: colour(rank.rank), x: rank.series.step, mean: rank.series[name] }));
    PHASES.forEach(([name], at) => this.cards[at].show(curves(name)));
    this.memory.show(ranks.map((rank) => ({ name: `rank ${rank.rank}`, colour: colour(rank.rank), x: rank.memory.step, mean: rank.memory.resident, points: rank.memory.step.length < 3 })));
  }

  destroy() { [...this.cards, this.memory].forEach((card) => card.destroy()); }
}

/** The members of a run and every change of the membership. */
export class MembersPanel {
  constructor() { this.element = h("section", { class: "card changes" }); }

  update(detail) {
    const rows = detail.members.map((record) => [clock(record.t), record.text, record.generation === null ? "" : count(record.generation),
      record.world_size === null ? "" : count(record.world_size)]);
    fill(this.element, h("div", { class: "card-head" }, h("h2", { text: "Members and changes" })),
      rows.length === 0 ? note("No member was recorded.") : table("Changes of the membership", ["Time", "What happened", "Generation", "Workers"], rows, [2, 3]));
  }

  destroy() {}
}

/** The checkpoints of a run. */
export class CheckpointsPanel {
  constructor() { this.element = h("section", { class: "card" }); }

  update(detail) {
    const rows = detail.checkpoints.map((record) => [clock(record.t), h("span", { class: `outcome ${record.outcome}`, text: record.outcome }), count(record.step),
      record.outcome === "failed" ? "–" : bytes(record.bytes), duration(record.seconds), record.outcome === "saved" ? duration(record.held_up_s) : "–", record.text]);
    fill(this.element, h("div", { class: "card-head" }, h("h2", { text: "Checkpoints" })),
      rows.length === 0 ? note("This run has saved no checkpoint.") : table("Checkpoints",
        ["Time", "Outcome", "Step", "Size", "Duration", "Training paused", "Address or reason"], rows, [2, 3, 4, 5]),
      detail.model ? h("p", { class: "note" }, "Model: ", h("code", { text: detail.model })) : null);
  }

  destroy() {}
}

/** The messages of a run and the output of its ranks. */
export class LogsPanel {
  constructor(load) {
    this.load = load;
    this.text = h("input", { type: "search", placeholder: "Search the logs", "aria-label": "Search the logs", oninput: () => this.later() });
    this.rank = h("select", { "aria-label": "Rank", onchange: () => this.refresh() }, h("option", { value: "", text: "all ranks" }));
    this.lines = h("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Lines of the logs" });
    this.element = h("section", { class: "card" },
      h("div", { class: "toolbar" }, this.text, this.rank), this.lines);
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), 200);
  }

  async refresh() {
    const answer = await this.load(this.text.value, this.rank.value).catch(() => null);
    if (!answer) {
      if (!this.lines.hasChildNodes()) fill(this.lines, note("The logs cannot be read at present."));
      return;
    }
    const known = new Set([...this.rank.options].map((option) => option.value));
    const ranks = new Set([...answer.ranks, ...answer.messages.map((line) => line.rank).filter(Boolean)]);
    [...ranks].sort((a, b) => a - b).filter((rank) => !known.has(rank))
      .forEach((rank) => this.rank.append(h("option", { value: rank, text: `rank ${rank}` })));
    const line = (entry) => h("div", { class: entry.is_warning ? "line warning" : "line" },
      h("span", { class: "muted", text: entry.t ? new Date(1e3 * entry.t).toLocaleTimeString() : "" }),
      h("span", { class: "log-rank", text: entry.rank === "" ? "run" : `rank ${entry.rank}` }), h("span", { class: "log-text", text: entry.text }));
    const found = [...answer.messages].reverse().map(line);
    const output = answer.output.map(line);
    fill(this.lines, ...(found.length + output.length === 0 ? [note(this.text.value || this.rank.value ? "No line matches." : "Neither the run nor its ranks have printed a line.")] : []),
      ...(found.length > 0 ? [h("h3", { text: "Messages" }), ...found] : []),
      ...(output.length > 0 ? [h("h3", { text: answer.is_cut ? "Output of the ranks (the newest lines)" : "Output of the ranks" }), ...output] : []));
  }

  update() { this.later(); }

  destroy() { clearTimeout(this.timer); }
}

/** The run files of the selected runs, and the keys in which they differ. */
export class SettingsPanel {
  constructor(load) {
    this.load = load;
    this.known = new Map();
    this.onlyDifferent = h("input", { type: "checkbox", onchange: () => this.draw() });
    this.filter = h("input", { type: "search", placeholder: "Filter keys", "aria-label": "Filter keys", oninput: () => this.draw() });
    this.body = h("div", {});
    this.element = h("section", { class: "card" },
      h("div", { class: "toolbar" }, this.filter, h("label", { class: "check" }, this.onlyDifferent, "Only what differs")), this.body);
  }

  async update(runs) {
    this.runs = runs;
    await Promise.all(runs.filter((run) => Object.keys(this.known.get(run.id) ?? {}).length === 0).map(async (run) => this.known.set(run.id, await this.load(run.id))));
    this.draw();
  }

  draw() {
    const runs = this.runs.slice(0, 12);
    const settings = runs.map((run) => this.known.get(run.id) ?? {});
    const keys = [...new Set(settings.flatMap((values) => Object.keys(values)))].sort();
    const differs = (key) => settings.some((values) => values[key] !== settings[0][key]);
    this.onlyDifferent.disabled = runs.length < 2;
    const only = this.onlyDifferent.checked && runs.length > 1;
    const text = this.filter.value.toLowerCase();
    const rows = keys.filter((key) => key.toLowerCase().includes(text) && (!only || differs(key))).map((key) => [
      h("code", { text: key }), ...settings.map((values) => h("code", { class: differs(key) ? "differs" : null, text: values[key] ?? "–" }))]);
    fill(this.body, rows.length === 0 ? note(keys.length === 0 ? "A run writes its resolved run file when it ends; there is none yet." : only ? "The runs do not differ." : "No key matches.")
      : table("Run files", ["Key", ...runs.map((run) => run.name)], rows));
  }

  destroy() {}
}
