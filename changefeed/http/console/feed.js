// One feed: what it does, what failed and what may be done about it.

import { feedPath, get, watch } from "./api.js";
import { actionButton } from "./actions.js";
import { Table, bytes, chip, duration, facts, h, notice, number, quoted, section, time } from "./dom.js";
import { why } from "./feeds.js";
import { Plot } from "./plot.js";

function tablesOf(name, rights) {
  return new Table("Tables", [
    { name: "table" },
    { name: "topic", title: "target" },
    { name: "state", show: (row) => chip(row.state) },
    { name: "scan", show: (row) => scan(row.scan) },
    { name: "lag", number: true, show: (row) => duration(row.lag) },
    { name: "done_upto", title: "complete up to", show: (row) => time(row.done_upto) },
    { name: "emitted_rows", title: "rows", number: true, show: (row) => number(row.emitted_rows) },
    { name: "emitted_bytes", title: "bytes", number: true, show: (row) => bytes(row.emitted_bytes) },
    { name: "error", show: (row) => [row.error, row.hint && h("p", { class: "hint" }, row.hint)] },
    { name: "actions", title: "", show: (row) => [
      row.state === "failed" && actionButton("Retry", `RESUME CHANGEFEED ${quoted(name)}`,
        rights("POST /v1/feeds/{name}/retry")),
      row.transaction && actionButton("Skip transaction",
        `ALTER CHANGEFEED ${quoted(name)} SKIP TRANSACTION '${row.transaction}'`,
        rights("POST /v1/feeds/{name}/skip-transaction")),
      row.state === "paused" && actionButton("Resume",
        `RESUME CHANGEFEED ${quoted(name)} TABLE ${row.table}`, rights("POST /v1/feeds/{name}/resume")),
      !["paused", "failed", "done"].includes(row.state) && actionButton("Pause",
        `PAUSE CHANGEFEED ${quoted(name)} TABLE ${row.table}`, rights("POST /v1/feeds/{name}/pause")),
      actionButton("Rescan", `ALTER CHANGEFEED ${quoted(name)} RESCAN ${row.table}`,
        rights("POST /v1/feeds/{name}/rescan"))] },
  ], { key: (row) => row.table, empty: "no tables" });
}

/** "45 % (…)" with a bar. */
function scan(text) {
  const share = /^(\d+) %/.exec(text ?? "");
  return share ? [h("progress", { max: 100, value: share[1], "aria-label": "scan" }), ` ${text}`]
    : text ?? "";
}

const EVENTS = [
  { name: "time", show: (row) => time(row.time) },
  { name: "kind" }, { name: "table" }, { name: "event" }, { name: "code" },
  { name: "times", number: true, show: (row) => (row.times > 1 ? row.times : "") },
  { name: "last", show: (row) => (row.times > 1 ? time(row.last) : "") },
];

const ERRORS = [
  ...EVENTS.slice(0, 3),
  { name: "problem", show: (row) => [row.problem, row.hint && h("p", { class: "hint" }, row.hint)] },
  ...EVENTS.slice(4),
];

function lettersOf(name, rights) {
  const act = (title, verb, row) => actionButton(title,
    `${verb} CHANGEFEED ${quoted(name)} DEAD LETTERS ${row.letter}`,
    rights(`POST /v1/feeds/{name}/dead-letters/${title.toLowerCase()}`));
  return new Table("Dead letters", [
    { name: "letter", number: true },
    { name: "time", show: (row) => time(row.time) },
    { name: "table" }, { name: "change" },
    { name: "problem", show: (row) => `${row.code}: ${row.problem}` },
    { name: "state" }, { name: "key" },
    { name: "row", show: (row) => row.row && h("code", {}, row.row) },
    { name: "actions", title: "", show: (row) => [act("Retry", "RETRY", row),
      act("Discard", "DISCARD", row)] },
  ], { key: (row) => String(row.letter), empty: "no row was refused" });
}

function lineageOf() {
  const from = (row) => row.source_column
    ? `${row.source_table}.${row.source_column}` : h("span", { class: "quiet" }, row.detail ?? row.how);
  return new Table("Lineage", [
    { name: "target" }, { name: "part" },
    { name: "column", show: (row) => row.column ?? "(every row)" },
    { name: "source_column", title: "comes from", show: (row) => ["← ", from(row)] },
    { name: "how" },
    { name: "detail", show: (row) => row.source_column && row.detail && h("code", {}, row.detail) },
  ], { filter: true, empty: "the columns are not known yet" });
}

export function feed(main, { name, signal, fail }) {
  let allowed = [];
  const rights = (path) => allowed.includes(path);
  const may = (action) => rights(`POST /v1/feeds/{name}/${action}`);
  const head = h("div"), letters = lettersOf(name, rights), refused = h("div");
  const create = h("pre", { class: "statement" });
  const plots = [
    [new Plot("Rows a second", number, signal), "rows_per_second"],
    [new Plot("Bytes a second", bytes, signal), "bytes_per_second"],
    [new Plot("Lag", duration, signal), "lag_seconds"],
  ];
  const tables = tablesOf(name, rights);
  const errors = new Table("Errors", ERRORS, { empty: "nothing has failed" });
  const events = new Table("Events", EVENTS, { filter: true }), lineage = lineageOf();
  let drawn = null;
  main.replaceChildren(h("p", {}, h("a", { href: "#/feeds" }, "← Changefeeds")), h("h1", {}, name),
    head, h("div", { class: "plots" }, plots.map(([plot]) => plot.element)),
    section("Tables", tables.element), section("Errors", errors.element),
    section("Dead letters", refused, letters.element), section("Events", events.element),
    section("Lineage", lineage.element),
    section("Statement", create));

  const actions = (shown) => h("p", { class: "actions" },
    !["paused", "failed", "succeeded"].includes(shown.status)
      && actionButton("Pause", `PAUSE CHANGEFEED ${quoted(name)}`, may("pause")),
    shown.status === "paused"
      && actionButton("Resume", `RESUME CHANGEFEED ${quoted(name)}`, may("resume")),
    ["failed", "degraded"].includes(shown.status)
      && actionButton("Retry", `RESUME CHANGEFEED ${quoted(name)}`, may("retry")),
    actionButton("Rescan all tables", `ALTER CHANGEFEED ${quoted(name)} RESCAN`, may("rescan")));

  return watch(feedPath(name), signal, async (shown) => {
    // Of this feed: its owner may do more than the role says.
    allowed = (await get(feedPath(name, "/rights"), signal)).may;
    const said = why(shown);
    head.replaceChildren(
      h("p", {}, chip(shown.status), said && ` ${said}`),
      shown.hint ? notice(shown.hint, "hint") : "",
      actions(shown),
      facts([
        ["lag", duration(shown.lag)],
        ["complete up to", time(shown.high_water_timestamp)],
        ["initial scan", shown.scan_progress],
        ["slo", shown.slo],
        ["rows", number(shown.emitted_rows)], ["bytes", bytes(shown.emitted_bytes)],
        ["source", shown.source], ["held there", shown.source_holds],
        ["source error", shown.source_error],
        ["sink", shown.sink_uri], ["format", shown.format], ["options", shown.options?.join(", ")],
        ["last Spark job", shown.last_spark_job],
        ["node", shown.node], ["job", shown.job_id], ["created", time(shown.created)],
      ]));
    const parts = ["/tables", "/errors", "/events", "/dead-letters", "/create", "/series"];
    const [t, e, v, l, made, series] = await Promise.all(
      parts.map((rest) => get(feedPath(name, rest), signal)));
    tables.update(t.items);
    errors.update(e.items);
    events.update(v.items);
    letters.update(l.items);
    // The node works it out for each request, so it is asked only after a change.
    const about = [shown.generation, ...t.items.map((row) => row.state)].join();
    if (about !== drawn) lineage.update((await get(feedPath(name, "/lineage"), signal)).items);
    drawn = about;
    refused.replaceChildren(...l.notices.map((text) => notice(text)));
    create.textContent = made.create_statement;
    for (const [plot, figure] of plots) plot.update(series.at, series[figure]);
  }, fail);
}
