// The view of the predicted classes of a run: its confusion matrix, and the most frequent mistakes.
import { h, fill, table, note, count, percent } from "./elements.js";

/** Most classes whose matrix is drawn. */
const MATRIX_CLASSES_MAX = 32;
/** Most mistakes that are listed. */
const MISTAKES_MAX = 20;

const sum = (row) => row.reduce((all, number) => all + number, 0);

/** The matrix as a table whose cells are coloured by their share of the true class. */
function matrix(rows, name) {
  const cell = (number, truth, predicted, share) => h("td", {
    class: truth === predicted ? "right" : "wrong", style: { "--share": `${Math.round(100 * share)}%` },
    title: `class ${name(truth)} predicted as ${name(predicted)}: ${count(number)} (${percent(share)})`, text: number === 0 ? "" : count(number) });
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Confusion matrix" },
    h("table", { class: "matrix" },
      h("caption", { class: "hidden", text: "A row for each true class, a column for each predicted one" }),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "true" }), ...rows.map((_, at) => h("th", { scope: "col", text: name(at) })))),
      h("tbody", {}, ...rows.map((row, truth) => {
        const all = sum(row);
        return h("tr", {}, h("th", { scope: "row", text: name(truth) }), ...row.map((number, at) => cell(number, truth, at, all === 0 ? 0 : number / all)));
      }))));
}

/** The classes that the model of a run predicts. */
export class ClassesPanel {
  constructor() { this.element = h("div", {}); }

  update(detail) {
    const found = detail.confusion;
    if (!found) {
      const hint = "No confusion matrix was recorded. A run file with metrics = [\"confusion_matrix\"] in [train] records that of the saved model.";
      fill(this.element, h("section", { class: "card" }, note(hint)));
      return;
    }
    const { rows, step } = found;
    const name = (at) => found.classes?.[at] ?? String(at);
    const all = sum(rows.map(sum));
    const right = sum(rows.map((row, truth) => row[truth] ?? 0));
    const mistakes = rows.flatMap((row, truth) => row.map((number, predicted) => ({ truth, predicted, number, share: number / sum(row) })))
      .filter(({ truth, predicted, number }) => truth !== predicted && number > 0)
      .sort((a, b) => b.number - a.number || a.truth - b.truth || a.predicted - b.predicted).slice(0, MISTAKES_MAX);
    const head = h("div", { class: "card-head" }, h("h2", { text: "Confusion matrix" }),
      h("span", { class: "muted", text: `after step ${count(step + 1)}: ${count(right)} of ${count(all)} right` }));
    const drawn = rows.length <= MATRIX_CLASSES_MAX ? matrix(rows, name) : note(`The matrix of ${count(rows.length)} classes is not drawn; the list has its largest elements.`);
    const list = mistakes.length === 0 ? note("No target was predicted as another class.") : table("Most frequent mistakes",
      ["True class", "Predicted", "Targets", "Share of the class"], mistakes.map(({ truth, predicted, number, share }) => [name(truth), name(predicted), count(number), percent(share)]), [2, 3]);
    fill(this.element, h("section", { class: "card" }, head, drawn),
      h("section", { class: "card next" }, h("div", { class: "card-head" }, h("h2", { text: "Most frequent mistakes" })), list));
  }

  destroy() {}
}
