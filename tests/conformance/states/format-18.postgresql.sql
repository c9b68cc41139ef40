-- A state of release 0.2.0 (format 18): one feed of two tables, its connection, a node, a user.
CREATE SCHEMA changefeed;
CREATE TABLE changefeed.api_user (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	expires BIGINT, 
	seen BIGINT, 
	PRIMARY KEY (name), 
	UNIQUE (digest)
);
CREATE TABLE changefeed.audit (
	id BIGSERIAL NOT NULL, 
	at BIGINT NOT NULL, 
	"user" TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	statement TEXT NOT NULL, 
	code TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE changefeed.captured (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	since TEXT NOT NULL, 
	table_id BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
CREATE TABLE changefeed.change (
	id SERIAL NOT NULL, 
	number BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE changefeed.connection (
	name TEXT NOT NULL, 
	uri TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE changefeed.function (
	name TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	returns TEXT NOT NULL, 
	reference TEXT NOT NULL, 
	path TEXT NOT NULL, 
	vectorized BOOLEAN NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE changefeed.gap (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
CREATE TABLE changefeed.job (
	id BIGSERIAL NOT NULL, 
	name TEXT NOT NULL, 
	source TEXT NOT NULL, 
	sink_uri TEXT, 
	targets TEXT NOT NULL, 
	options TEXT NOT NULL, 
	statement TEXT NOT NULL, 
	status TEXT NOT NULL, 
	wanted TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	error TEXT, 
	error_code TEXT, 
	hint TEXT, 
	created BIGINT NOT NULL, 
	started BIGINT, 
	modified BIGINT NOT NULL, 
	finished BIGINT, 
	high_water TEXT, 
	cursor TEXT, 
	end_time TEXT, 
	generation INTEGER NOT NULL, 
	sinkless BOOLEAN NOT NULL, 
	emitted_rows BIGINT DEFAULT '0' NOT NULL, 
	emitted_bytes BIGINT DEFAULT '0' NOT NULL, 
	rate TEXT NOT NULL, 
	taken BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
);
CREATE UNIQUE INDEX job_name ON changefeed.job (name) WHERE status <> 'dropped';
CREATE TABLE changefeed.log_ledger (
	source TEXT NOT NULL, 
	ledger TEXT NOT NULL, 
	PRIMARY KEY (source)
);
CREATE TABLE changefeed.log_note (
	source TEXT NOT NULL, 
	name TEXT NOT NULL, 
	body BYTEA NOT NULL, 
	PRIMARY KEY (source, name)
);
CREATE TABLE changefeed.log_object (
	source TEXT NOT NULL, 
	name TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	object TEXT NOT NULL, 
	PRIMARY KEY (source, name)
);
CREATE TABLE changefeed.log_tail (
	source TEXT NOT NULL, 
	journal BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	size BIGINT NOT NULL, 
	crc BIGINT NOT NULL, 
	object TEXT, 
	body BYTEA, 
	PRIMARY KEY (source, journal, start)
);
CREATE TABLE changefeed.meta (
	key TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (key)
);
CREATE TABLE changefeed.node (
	id TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	version TEXT NOT NULL, 
	started BIGINT NOT NULL, 
	seen BIGINT NOT NULL, 
	draining BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE changefeed.question (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	body TEXT NOT NULL, 
	asked BIGINT NOT NULL, 
	node TEXT, 
	answer TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE changefeed.source_lease (
	source TEXT NOT NULL, 
	node TEXT, 
	token BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (source)
);
CREATE TABLE changefeed.source_state (
	name TEXT NOT NULL, 
	memo TEXT NOT NULL, 
	holds TEXT NOT NULL, 
	identity TEXT NOT NULL, 
	status TEXT NOT NULL, 
	error TEXT NOT NULL, 
	error_code TEXT NOT NULL, 
	position TEXT NOT NULL, 
	frontier TEXT, 
	updated BIGINT NOT NULL, 
	renewal BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE changefeed.table_name (
	source TEXT NOT NULL, 
	table_id BIGINT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	PRIMARY KEY (source, table_id, schema, name)
);
CREATE TABLE changefeed.table_schema (
	version BIGSERIAL NOT NULL, 
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	body TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	announced BOOLEAN DEFAULT true NOT NULL, 
	PRIMARY KEY (version)
);
CREATE INDEX table_schema_latest ON changefeed.table_schema (source, schema, name, version);
CREATE TABLE changefeed.event (
	id BIGSERIAL NOT NULL, 
	job_id BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	code TEXT, 
	table_name TEXT, 
	text TEXT NOT NULL, 
	times BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(job_id) REFERENCES changefeed.job (id) ON DELETE CASCADE
);
CREATE INDEX event_job ON changefeed.event (job_id, id);
CREATE TABLE changefeed.job_table (
	job_id BIGINT NOT NULL, 
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	topic TEXT NOT NULL, 
	schema_version BIGINT NOT NULL, 
	state TEXT NOT NULL, 
	scan_wanted BOOLEAN NOT NULL, 
	scan_at TEXT, 
	done_upto TEXT, 
	start TEXT, 
	scan_rows BIGINT DEFAULT '0' NOT NULL, 
	scan_total BIGINT DEFAULT '0' NOT NULL, 
	emitted_rows BIGINT DEFAULT '0' NOT NULL, 
	emitted_bytes BIGINT DEFAULT '0' NOT NULL, 
	error TEXT, 
	error_code TEXT, 
	hint TEXT DEFAULT '' NOT NULL, 
	columns TEXT NOT NULL, 
	values_from TEXT NOT NULL, 
	values_to TEXT NOT NULL, 
	partition TEXT, 
	joined BOOLEAN NOT NULL, 
	added_at BIGINT NOT NULL, 
	table_id BIGINT DEFAULT '0' NOT NULL, 
	rescan BIGINT DEFAULT '0' NOT NULL, 
	rescanned BIGINT DEFAULT '0' NOT NULL, 
	gap BIGINT DEFAULT '0' NOT NULL, 
	original TEXT DEFAULT '[]' NOT NULL, 
	repair TEXT DEFAULT '' NOT NULL, 
	proof TEXT DEFAULT '' NOT NULL, 
	unread TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (job_id, source, schema, name), 
	FOREIGN KEY(job_id) REFERENCES changefeed.job (id) ON DELETE CASCADE
);
CREATE TABLE changefeed.lease (
	job_id BIGINT NOT NULL, 
	node TEXT, 
	token BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES changefeed.job (id) ON DELETE CASCADE
);
INSERT INTO changefeed."api_user" ("name", "role", "digest", "created", "expires", "seen") VALUES ('ann', 'viewer', '28bea0736a9d04f2c03c16e771268ac81a9e2da03f1cf34b7a480a0fe4b752b0', 1700000000000000000, NULL, NULL);
INSERT INTO changefeed."audit" ("id", "at", "user", "origin", "statement", "code") VALUES (1, 1700000000000000000, 'ann', '127.0.0.1', 'SHOW CHANGEFEEDS', NULL);
INSERT INTO changefeed."change" ("id", "number") VALUES (1, 5);
INSERT INTO changefeed."connection" ("name", "uri", "created") VALUES ('shop', 'postgresql://app:s3cret@127.0.0.1:5432/shop', 1700000000000000000);
INSERT INTO changefeed."job" ("id", "name", "source", "sink_uri", "targets", "options", "statement", "status", "wanted", "reason", "error", "error_code", "hint", "created", "started", "modified", "finished", "high_water", "cursor", "end_time", "generation", "sinkless", "emitted_rows", "emitted_bytes", "rate", "taken") VALUES (1, 'orders', 'shop', 'null://', '["orders", "items"]', '{"updated": "", "resolved": "10s"}', 'CREATE CHANGEFEED ...', 'starting', 'running', 'waits for a node', NULL, NULL, NULL, 1700000000000000000, NULL, 1700000000000000000, NULL, NULL, NULL, NULL, 1, false, 0, 0, '[0, 0, 0, 0, 0]', 0);
INSERT INTO changefeed."meta" ("key", "value") VALUES ('format', '18');
INSERT INTO changefeed."meta" ("key", "value") VALUES ('state_id', 'abc234');
INSERT INTO changefeed."node" ("id", "pid", "host", "version", "started", "seen", "draining") VALUES ('n1', 4194300, 'elsewhere', '0.2.0', 1700000000000000000, 1700000000000000000, false);
INSERT INTO changefeed."event" ("id", "job_id", "at", "kind", "code", "table_name", "text", "times", "last") VALUES (1, 1, 1700000000000000000, 'status', NULL, NULL, 'created', 1, 1700000000000000000);
INSERT INTO changefeed."event" ("id", "job_id", "at", "kind", "code", "table_name", "text", "times", "last") VALUES (2, 1, 1700000000000000000, 'created', NULL, NULL, 'a feed of 0.2.0', 1, 1700000000000000000);
INSERT INTO changefeed."job_table" ("job_id", "source", "schema", "name", "topic", "schema_version", "state", "scan_wanted", "scan_at", "done_upto", "start", "scan_rows", "scan_total", "emitted_rows", "emitted_bytes", "error", "error_code", "hint", "columns", "values_from", "values_to", "partition", "joined", "added_at", "table_id", "rescan", "rescanned", "gap", "original", "repair", "proof", "unread") VALUES (1, 'shop', 'public', 'orders', 'orders', 0, 'pending', true, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, '', '[]', '[]', '[]', NULL, false, 1700000000000000000, 0, 0, 0, 0, '[]', '', '', '');
INSERT INTO changefeed."job_table" ("job_id", "source", "schema", "name", "topic", "schema_version", "state", "scan_wanted", "scan_at", "done_upto", "start", "scan_rows", "scan_total", "emitted_rows", "emitted_bytes", "error", "error_code", "hint", "columns", "values_from", "values_to", "partition", "joined", "added_at", "table_id", "rescan", "rescanned", "gap", "original", "repair", "proof", "unread") VALUES (1, 'shop', 'public', 'items', 'items', 0, 'pending', true, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, '', '[]', '[]', '[]', NULL, false, 1700000000000000000, 0, 0, 0, 0, '[]', '', '', '');
INSERT INTO changefeed."lease" ("job_id", "node", "token", "expires") VALUES (1, 'n1', 1, 1700000010000000000);
SELECT setval(pg_get_serial_sequence('changefeed.job', 'id'), max(id)) FROM changefeed.job;
SELECT setval(pg_get_serial_sequence('changefeed.audit', 'id'), max(id)) FROM changefeed.audit;
SELECT setval(pg_get_serial_sequence('changefeed.event', 'id'), max(id)) FROM changefeed.event;
