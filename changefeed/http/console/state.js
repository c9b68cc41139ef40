// What is not of one feed: sources, nodes, promises, the audit.

import { get } from "./api.js";
import { actionButton, errorNotice } from "./actions.js";
import { Table, bytes, chip, duration, facts, h, notice, number, quiet, quoted, section, time,
} from "./dom.js";
import { feedLink } from "./feeds.js";

/** Reads again and again until the signal. */
async function poll(signal, seconds, fail, read) {
  while (!signal.aborted) {
    try {
      await read();
      fail(null);
    } catch (error) {
      if (signal.aborted) return;
      fail(error);
      if (error.status < 500) return;
    }
    await new Promise((done) => setTimeout(done, 1000 * seconds));
  }
}

const linked = (names) => names.map((name, at) => [at ? ", " : "", feedLink(name)]);
const percent = (share) => (share == null ? "" : `${number(100 * share)} %`);

// --------------------------------------------------------------------------- sources

/** A bar of how full a log is, in words where it has no limit. */
function log(source) {
  if (source.log_bytes == null) return "";
  const limits = [source.kept_bytes, source.budget_bytes].filter((limit) => limit != null);
  const most = limits.length ? Math.min(...limits) : null;
  return [bytes(source.log_bytes), most == null ? "" : [" of at most ", bytes(most), " ",
    h("progress", { max: most, value: source.log_bytes, "aria-label": "change log" })]];
}

export function sources(main, { signal, fail, rights }) {
  const place = h("div");
  const connections = new Table("External connections", [
    { name: "name" }, { name: "uri", title: "URI" },
    { name: "used_by", show: (row) => linked([row.used_by ?? []].flat()) },
    { name: "created", show: (row) => time(row.created) },
    { name: "check", title: "", show: (row) => actionButton("Check",
      `CHECK EXTERNAL CONNECTION ${quoted(row.name)}`, rights("POST /v1/sources/{name}/check")) },
  ], { key: (row) => row.name });
  main.replaceChildren(h("h1", {}, "Sources"), place,
    section("External connections", connections.element));
  const kept = new Map(); // source -> where its headroom is shown
  return poll(signal, 10, fail, async () => {
    const [{ items }, every] = await Promise.all([get("v1/captures", signal), get("v1/sources", signal)]);
    connections.update(every.items);
    place.replaceChildren(...items.map((source) => {
      if (!kept.has(source.source)) kept.set(source.source, h("div"));
      return section(source.source,
        source.error && notice(source.error, "bad"),
        facts([
          ["status", source.status && chip(source.status)],
          ["held there", source.holds],
          ["kept there", kept.get(source.source)],
          ["read up to", time(source.complete_up_to)],
          ["change log", log(source)],
          ["it begins at", time(source.log_since)],
          ["it keeps", source.kept_seconds && `${duration(source.kept_seconds)} (gc_ttl)`],
          ["feeds", source.feeds.length && linked(source.feeds)],
        ]));
    }), items.length ? "" : quiet("No feed has a source yet."));
    for (const [name, shown] of kept) {
      get(`v1/sources/${encodeURIComponent(name)}/headroom`, signal).then(
        (answer) => shown.replaceChildren(answer.kept.join("; ") || "not known"),
        (error) => signal.aborted || shown.replaceChildren(...errorNotice(error)));
    }
  });
}

// ------------------------------------------------------------------ nodes, slo, audit

/** A page that is one table. */
const listing = (title, path, seconds, columns, options = {}) => (main, { signal, fail }) => {
  const table = new Table(title, columns, options);
  main.replaceChildren(h("h1", {}, title), options.words ? quiet(options.words) : "", table.element);
  return poll(signal, seconds, fail, async () => table.update((await get(path, signal)).items));
};

export const nodes = listing("Nodes", "v1/nodes", 5, [
  { name: "node" }, { name: "host" }, { name: "status", show: (row) => chip(row.status) },
  { name: "captures", show: (row) => (row.captures ?? []).join(", ") },
  { name: "feeds", show: (row) => linked(row.feeds ?? []) },
  { name: "load", number: true }, { name: "version" },
  { name: "started", show: (row) => time(row.started) }, { name: "waits_for" },
], { key: (row) => row.node, empty: "no node is alive" });

export const slo = listing("SLO", "v1/slo", 10, [
  { name: "feed", show: (row) => feedLink(row.feed) },
  { name: "slo", title: "promise" },
  { name: "rows", number: true, show: (row) => number(row.rows) },
  { name: "p50_seconds", title: "half within", number: true, show: (row) => duration(row.p50_seconds) },
  { name: "p99_seconds", title: "99 % within", number: true, show: (row) => duration(row.p99_seconds) },
  ...["24h", "7d"].flatMap((window) => [
    { name: `kept_${window}`, title: `kept in ${window}`, number: true,
      show: (row) => percent(row[`kept_${window}`]) },
    { name: `burnt_${window}`, title: "budget burnt", number: true, show: (row) => burnt(row[`burnt_${window}`]) },
  ]),
], { key: (row) => row.feed, words: "From the commit of a row until it was durable in the sink. "
  + "WITH slo = '99% within 5m' promises, and counts against the promise from then on." });

const burnt = (share) => (share == null ? "" : h("span", { class: `chip ${share > 1 ? "bad" : "good"}` },
  percent(share)));

export const audit = listing("Audit", "v1/audit", 10, [
  { name: "at", title: "time", show: (row) => time(row.at) }, { name: "user" }, { name: "origin" },
  { name: "statement", show: (row) => h("code", {}, row.statement) },
  { name: "code", title: "failed with" },
], { filter: true, empty: "nothing yet", words: "The newest 100; SHOW AUDIT with WHERE has more." });
