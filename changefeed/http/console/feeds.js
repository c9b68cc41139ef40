// The list of feeds.

import { watch } from "./api.js";
import { Table, bytes, chip, duration, h, kind, number, quiet } from "./dom.js";

export const feedLink = (name) => h("a", { href: `#/feeds/${encodeURIComponent(name)}` }, name);

/** Why a feed is not plainly running. */
export function why(feed) {
  if (feed.error) return feed.error;
  const said = feed.running_status ?? "";
  return said.startsWith("running: resolved=") ? said.split("; ").slice(1).join("; ") : said;
}

const shortTables = (names) => {
  const short = names.map((name) => name.split(".").slice(1).join(".").replace(/^public\./, ""));
  return short.length > 4 ? `${short.slice(0, 3).join(", ")} and ${short.length - 3} more`
    : short.join(", ");
};

const COLUMNS = [
  { name: "name", show: (feed) => feedLink(feed.name) },
  { name: "status", show: (feed) => chip(feed.status),
    value: (feed) => `${["bad", "good", "still"].indexOf(kind(feed.status))}${feed.status}` },
  { name: "lag", number: true, show: (feed) => duration(feed.lag) },
  { name: "rows_per_second", title: "rows/s", number: true,
    show: (feed) => number(feed.rows_per_second) },
  { name: "bytes_per_second", title: "bytes/s", number: true,
    show: (feed) => bytes(feed.bytes_per_second) },
  { name: "full_table_names", title: "tables", show: (feed) => shortTables(feed.full_table_names) },
  { name: "source" },
  { name: "sink_uri", title: "sink", show: (feed) => (feed.sink_uri ?? "").split("?")[0] },
  { name: "why", show: why, value: why },
];

export function feeds(main, { signal, fail }) {
  const summary = quiet("");
  const table = new Table("Changefeeds", COLUMNS, {
    key: (feed) => feed.name, sort: { name: "status", descending: false }, filter: true,
    empty: "no feeds yet: CREATE CHANGEFEED makes one",
  });
  main.replaceChildren(h("h1", {}, "Changefeeds"), summary, table.element);
  return watch("v1/feeds", signal, ({ items }) => {
    const troubled = items.filter((feed) => kind(feed.status) === "bad").length;
    const lags = items.filter((feed) => kind(feed.status) !== "still").map((feed) => feed.lag ?? 0);
    summary.textContent = [`${items.length} feed${items.length === 1 ? "" : "s"}`,
      troubled && `${troubled} in trouble`, lags.length && `worst lag ${duration(Math.max(...lags))}`]
      .filter(Boolean).join(" · ");
    table.update(items);
  }, fail);
}
