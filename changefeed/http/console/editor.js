// Statements: what is typed, what fits at the cursor, what came of it.

import { ApiError, get, post, run } from "./api.js";
import { errorNotice } from "./actions.js";
import { Table, bytes, duration, h, notice, number, quiet, quoted, section } from "./dom.js";

const MOST_ROWS = 1000; // of a feed without INTO: older ones leave
let session = {}, text = ""; // while the page is open

/** A cell as the API writes it for people: {"seconds": 3} or {"text": [exact, words]}. */
function cell(form) {
  if (form == null) return "";
  if (typeof form !== "object") return String(form);
  const [[kind, value]] = Object.entries(form);
  if (value == null) return "";
  return { seconds: duration, bytes, rate: number, estimate: (n) => `~${number(n)}`,
    list: (names) => names.join(", "), text: ([, words]) => words }[kind](value);
}
const plain = (form) => (form !== null && typeof form === "object" && !form.list && !form.text
  ? Object.values(form)[0] : cell(form));

function table(label, names, rows, filter = false) {
  const shown = new Table(label, names.map((name, at) => ({ name, title: name,
    show: (row) => cell(row[at]), value: (row) => plain(row[at]) })), { empty: "no rows", filter });
  shown.element.classList.add("wide");
  shown.update(rows);
  return shown;
}

function result(form) {
  const names = form.columns.map(({ name }) => name);
  const facts = (title, pairs) => section(title, h("dl", {}, pairs.filter(([, value]) => cell(value))
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, cell(value))])));
  return h("section", { "aria-label": form.tag }, h("h2", {}, form.tag),
    form.notices.map((said) => notice(said)),
    form.sections?.length ? form.sections.map((part) => facts(part.title, part.facts))
      : form.brief ? table(form.tag, form.brief.columns, form.brief.rows, true).element : null,
    form.sections?.length || form.brief ? h("details", {}, h("summary", {}, "every column"),
      table(`${form.tag}, every column`, names, form.rows).element)
      : names.length ? table(form.tag, names, form.rows, true).element : quiet("done"),
    form.failure && errorNotice(new ApiError(form.failure)));
}

/** The place of an error in what was sent. */
function place(statement, [start, end]) {
  if (start == null) return "";
  return h("pre", { class: "statement" }, statement.slice(0, start),
    h("mark", {}, statement.slice(start, end) || " "), statement.slice(end));
}

export function editor(main, { signal }) {
  const area = h("textarea", { rows: 7, spellcheck: "false", autocapitalize: "off",
    "aria-label": "Statements", "aria-controls": "fits",
    placeholder: "SHOW CHANGEFEEDS WHERE status <> 'running'" });
  const list = h("ul", { id: "fits", role: "listbox", "aria-label": "Completions" });
  const start = h("button", { type: "button", class: "primary", onclick: () => send() }, "Run");
  const stop = h("button", { type: "button", disabled: true, onclick: () => running?.abort() }, "Stop");
  const out = h("div", { "aria-live": "polite" });
  let running = null, chosen = -1, fits = [], asked = 0;

  // -- completion: the grammar's words, and names of the kinds that fit

  async function candidates(head) {
    const at = await post("v1/completions", { statement: head }, signal);
    const found = at.quote ? [] : at.words.map((word) => ({ text: word, meta: "" }));
    const kinds = new Set(at.kinds);
    const names = kinds.size ? await get("v1/names", signal) : null;
    const add = (kind, every) => kinds.has(kind) && found.push(...every);
    add("feed", names?.feeds.map((feed) => ({ text: feed.name, meta: feed.status, name: true })));
    const connections = Object.entries(names?.connections ?? {})
      .map(([name, scheme]) => ({ text: name, meta: scheme, name: true }));
    if (kinds.has("connection") || kinds.has("table")) found.push(...connections);
    add("function", Object.entries(names?.functions ?? {})
      .map(([name, meta]) => ({ text: name, meta, name: true })));
    add("schedule", Object.entries(names?.schedules ?? {})
      .map(([name, meta]) => ({ text: name, meta, name: true })));
    add("option", at.options.map(({ name, summary }) => ({ text: name, meta: summary })));
    const source = at.source ?? (at.path[0] in (names?.connections ?? {}) ? at.path[0]
      : session.source ?? names?.source);
    if (kinds.has("table") && source) {
      const { items } = await get(`v1/sources/${encodeURIComponent(source)}/tables`, signal);
      found.push(...items.map((row) => ({ text: at.path.length ? row.table.split(".").at(-1)
        : row.table.replace(/^public\./, ""), meta: "table" })));
    }
    const typed = at.prefix.toLowerCase();
    return found.filter((each) => each.text.toLowerCase().startsWith(typed) && each.text !== at.prefix)
      .slice(0, 12).map((each) => ({ ...each, prefix: at.prefix, quote: at.quote }));
  }

  async function suggest() {
    const mine = asked += 1;
    const head = area.value.slice(0, area.selectionStart);
    const found = head.trim() ? await candidates(head).catch(() => []) : [];
    if (mine !== asked) return; // more was typed
    [fits, chosen] = [found, -1];
    draw();
  }

  function draw() {
    list.replaceChildren(...fits.map((each, at) => h("li", {
      role: "option", "aria-selected": at === chosen, onmousedown: (event) => {
        event.preventDefault();
        take(at);
      } }, each.text, " ", h("span", { class: "quiet" }, each.meta))));
  }

  function take(at) {
    const { text: word, name, prefix, quote } = fits[at];
    const written = quote ? word + quote : name && !/^[a-z_]\w*$/.test(word) ? quoted(word) : word;
    area.setRangeText(`${written} `, area.selectionStart - prefix.length, area.selectionStart, "end");
    area.dispatchEvent(new Event("input"));
  }

  area.addEventListener("input", () => { text = area.value; suggest(); });
  area.addEventListener("blur", () => { [fits, chosen] = [[], -1]; draw(); });
  area.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
    else if (event.key === " " && event.ctrlKey) suggest();
    else if (event.key === "Escape" && fits.length) fits = [];
    else if (event.key === "Enter" && chosen >= 0) take(chosen);
    else if (step && fits.length && (chosen >= 0 || step > 0)) {
      chosen = Math.max(-1, Math.min(fits.length - 1, chosen + step));
    } else return;
    event.preventDefault();
    draw();
  });

  // -- running

  async function send() {
    const statement = area.value;
    if (running || !statement.trim()) return;
    running = new AbortController();
    const left = AbortSignal.any([signal, running.signal]);
    [start.disabled, stop.disabled, fits] = [true, false, []];
    draw();
    out.replaceChildren();
    let rows = null, every = [];
    try {
      for await (const line of run(statement, session, left)) {
        if (line.result) out.append(result(line.result));
        else if (line.session) session = line.session;
        else if (line.error) out.append(...failed(statement, line.error));
        else if (line.row && line.row[0] !== null) {
          if (!rows) out.append((rows = table("Rows", ["table", "key", "value", "op"], [])).element);
          every = [...every.slice(1 - MOST_ROWS), line.row];
          rows.update(every);
        }
      }
    } catch (error) {
      if (!left.aborted) out.append(...(error.body ? failed(statement, error.body) : errorNotice(error)));
      else if (!signal.aborted) out.append(notice("Stopped."));
    }
    [running, start.disabled, stop.disabled] = [null, false, true];
  }

  function failed(statement, body) {
    const at = body.start == null ? []
      : [body.start, body.end].map((end) => (body.offset ?? 0) + end);
    if (at.length) area.setSelectionRange(...at);
    return [...errorNotice(new ApiError(body)), place(statement, at)];
  }

  area.value = text;
  main.replaceChildren(h("h1", {}, "Statements"), area, list,
    h("p", { class: "actions" }, start, stop, h("span", { class: "quiet" },
      "Ctrl+Enter runs; ↓ and Enter take what fits; Ctrl+Space asks again")), out);
  area.focus();
}
