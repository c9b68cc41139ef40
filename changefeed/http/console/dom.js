// Elements and values. Every text is inserted as a text: nothing here parses markup.

/** An element; `on…` are listeners, false and null leave an attribute out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export const quiet = (text) => h("p", { class: "quiet" }, text);
export const notice = (text, kind = "") => h("p", { class: `notice ${kind}`, role: "status" }, text);

/** A section with its heading. */
export const section = (title, ...content) =>
  h("section", { "aria-label": title }, h("h2", {}, title), content);

/** Names and values, those without a value left out. */
export function facts(pairs) {
  const rows = pairs.filter(([, value]) => value != null && value !== "" && value?.length !== 0);
  return h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

// ---------------------------------------------------------------------------- values

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export const number = (value) => (value == null ? "" : NUMBER.format(value));

export function bytes(value) {
  if (value == null) return "";
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit < UNITS.length - 1; unit += 1) value /= 1000;
  return `${NUMBER.format(value)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 60) return `${NUMBER.format(seconds)}s`;
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "m"], [Math.floor(seconds) % 60, "s"]];
  const first = parts.findIndex(([count]) => count);
  return parts.slice(first, first + 2).filter(([count]) => count)
    .map(([count, unit]) => count + unit).join(" ");
}

/** A time of the API ("2026-11-29 10:30:00.123456", UTC, or nanoseconds since 1970 with a logical
 * part) as a person reads it; whole on hover. */
export function time(text) {
  if (!text) return "";
  const at = new Date(/^\d{19}\./.test(text) ? Number(text.slice(0, 13))
    : `${text.replace(" ", "T").replace(/( UTC|Z)?$/, "")}Z`);
  if (Number.isNaN(at.getTime())) return text;
  const since = (Date.now() - at.getTime()) / 1000;
  const ago = since < -1 ? `in ${duration(-since)}` : since < 1 ? "now" : `${duration(since)} ago`;
  const day = since < 64800 && since > -64800 ? "" : `${at.toISOString().slice(0, 10)} `;
  const shown = `${day}${at.toISOString().slice(11, 19)} UTC`;
  return h("time", { datetime: at.toISOString(), title: text }, `${shown} (${ago})`);
}

const GOOD = new Set(["running", "scanning", "succeeded", "active", "delivering"]);
const BAD = new Set(["failed", "degraded", "retrying", "stalled", "stopped"]);

/** "good", "bad" or "still": how a status is. */
export const kind = (status) => (BAD.has(status) ? "bad" : GOOD.has(status) ? "good" : "still");
export const chip = (status) => h("span", { class: `chip ${kind(status)}` }, status ?? "");

/** A name as a statement has it. */
export const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

// ---------------------------------------------------------------------------- tables

/**
 * A table that can be sorted and filtered, and keeps what has the focus when its rows change.
 *
 * A column has a name, perhaps a title, `show(row)` for its cell and `value(row)` to sort by, and
 * `number` where it is one.
 */
export class Table {
  constructor(label, columns, { key, sort = null, filter = false, empty = "none" } = {}) {
    this.columns = columns.map((column) => ({
      title: column.name.replaceAll("_", " "),
      show: (row) => row[column.name] ?? "",
      value: (row) => row[column.name],
      ...column,
    }));
    Object.assign(this, { key, empty, sort, rows: [], words: "" });
    this.body = h("tbody");
    this.heads = this.columns.map((column) => h("th", { scope: "col", class: column.number && "number" },
      h("button", { type: "button", onclick: () => this.by(column.name) }, column.title)));
    this.input = h("input", {
      type: "search", placeholder: "filter", "aria-label": `Filter ${label}`,
      oninput: () => { this.words = this.input.value.toLowerCase(); this.draw(); },
    });
    this.element = h("div", {}, filter && this.input,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
        h("table", {}, h("thead", {}, h("tr", {}, this.heads)), this.body)));
  }

  by(name) {
    const descending = this.sort?.name === name && !this.sort.descending;
    this.sort = { name, descending };
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const focus = this.body.contains(document.activeElement)
      ? [...this.body.querySelectorAll("a, button")].indexOf(document.activeElement) : -1;
    const focused = document.activeElement?.closest("tr")?.dataset.key;
    this.heads.forEach((head, at) => {
      const mine = this.sort?.name === this.columns[at].name;
      head.setAttribute("aria-sort", !mine ? "none" : this.sort.descending ? "descending" : "ascending");
    });
    const drawn = this.chosen().map((row) => h("tr", { "data-key": this.key?.(row) },
      this.columns.map((column) => h("td", { class: column.number && "number", "data-label": column.title },
        column.show(row)))));
    const none = h("tr", {}, h("td", { class: "quiet", colspan: this.columns.length },
      this.rows.length ? "nothing matches" : this.empty));
    this.body.replaceChildren(...(drawn.length ? drawn : [none]));
    if (focus < 0) return;
    const again = [...this.body.rows].find((row) => row.dataset.key === focused) ?? this.body;
    (again.querySelector("a, button") ?? this.body.querySelectorAll("a, button")[focus])?.focus();
  }

  chosen() {
    const matches = this.rows.filter((row) => !this.words
      || this.columns.some((column) => text(column.show(row)).toLowerCase().includes(this.words)));
    const column = this.columns.find((each) => each.name === this.sort?.name);
    if (!column) return matches;
    const sign = this.sort.descending ? -1 : 1;
    return matches.sort((a, b) => order(column.value(a), column.value(b), sign));
  }
}

const text = (shown) => (shown instanceof Node ? shown.textContent : [shown].flat(9).map(
  (part) => (part instanceof Node ? part.textContent : part)).join(" "));

/** What has no value comes last either way. */
function order(one, other, sign) {
  if (one == null || other == null) return (one == null) - (other == null);
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), "en", { numeric: true });
}
