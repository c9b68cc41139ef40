-- A state of release 0.2.0 (format 18): one feed of two tables, its connection, a node, a user.
BEGIN TRANSACTION;
CREATE TABLE api_user (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	expires BIGINT, 
	seen BIGINT, 
	PRIMARY KEY (name), 
	UNIQUE (digest)
);
INSERT INTO "api_user" VALUES('ann','viewer','28bea0736a9d04f2c03c16e771268ac81a9e2da03f1cf34b7a480a0fe4b752b0',1700000000000000000,NULL,NULL);
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at BIGINT NOT NULL, 
	user TEXT NOT NULL, 
	origin TEXT NOT NULL, 
	statement TEXT NOT NULL, 
	code TEXT
);
INSERT INTO "audit" VALUES(1,1700000000000000000,'ann','127.0.0.1','SHOW CHANGEFEEDS',NULL);
CREATE TABLE captured (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	since TEXT NOT NULL, 
	table_id BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
CREATE TABLE change (
	id INTEGER NOT NULL, 
	number BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "change" VALUES(1,5);
CREATE TABLE connection (
	name TEXT NOT NULL, 
	uri TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "connection" VALUES('shop','postgresql://app:s3cret@127.0.0.1:5432/shop',1700000000000000000);
CREATE TABLE event (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	code TEXT, 
	table_name TEXT, 
	text TEXT NOT NULL, 
	times BIGINT NOT NULL, 
	last BIGINT NOT NULL, 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "event" VALUES(1,1,1700000000000000000,'status',NULL,NULL,'created',1,1700000000000000000);
INSERT INTO "event" VALUES(2,1,1700000000000000000,'created',NULL,NULL,'a feed of 0.2.0',1,1700000000000000000);
CREATE TABLE function (
	name TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	returns TEXT NOT NULL, 
	reference TEXT NOT NULL, 
	path TEXT NOT NULL, 
	vectorized BOOLEAN NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE gap (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
CREATE TABLE job (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
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
	taken BIGINT DEFAULT '0' NOT NULL
);
INSERT INTO "job" VALUES(1,'orders','shop','null://','["orders", "items"]','{"updated": "", "resolved": "10s"}','CREATE CHANGEFEED ...','starting','running','waits for a node',NULL,NULL,NULL,1700000000000000000,NULL,1700000000000000000,NULL,NULL,NULL,NULL,1,0,0,0,'[0, 0, 0, 0, 0]',0);
CREATE TABLE job_table (
	job_id INTEGER NOT NULL, 
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
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "job_table" VALUES(1,'shop','public','orders','orders',0,'pending',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'','[]','[]','[]',NULL,0,1700000000000000000,0,0,0,0,'[]','','','');
INSERT INTO "job_table" VALUES(1,'shop','public','items','items',0,'pending',1,NULL,NULL,NULL,0,0,0,0,NULL,NULL,'','[]','[]','[]',NULL,0,1700000000000000000,0,0,0,0,'[]','','','');
CREATE TABLE lease (
	job_id INTEGER NOT NULL, 
	node TEXT, 
	token BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "lease" VALUES(1,'n1',1,1700000010000000000);
CREATE TABLE log_ledger (
	source TEXT NOT NULL, 
	ledger TEXT NOT NULL, 
	PRIMARY KEY (source)
);
CREATE TABLE log_note (
	source TEXT NOT NULL, 
	name TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (source, name)
);
CREATE TABLE log_object (
	source TEXT NOT NULL, 
	name TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	object TEXT NOT NULL, 
	PRIMARY KEY (source, name)
);
CREATE TABLE log_tail (
	source TEXT NOT NULL, 
	journal BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	size BIGINT NOT NULL, 
	crc BIGINT NOT NULL, 
	object TEXT, 
	body BLOB, 
	PRIMARY KEY (source, journal, start)
);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('format','18');
INSERT INTO "meta" VALUES('state_id','abc234');
CREATE TABLE node (
	id TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	version TEXT NOT NULL, 
	started BIGINT NOT NULL, 
	seen BIGINT NOT NULL, 
	draining BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "node" VALUES('n1',4194300,'elsewhere','0.2.0',1700000000000000000,1700000000000000000,0);
CREATE TABLE question (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	body TEXT NOT NULL, 
	asked BIGINT NOT NULL, 
	node TEXT, 
	answer TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE source_lease (
	source TEXT NOT NULL, 
	node TEXT, 
	token BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (source)
);
CREATE TABLE source_state (
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
CREATE TABLE table_name (
	source TEXT NOT NULL, 
	table_id BIGINT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	PRIMARY KEY (source, table_id, schema, name)
);
CREATE TABLE table_schema (
	version INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	body TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	announced BOOLEAN DEFAULT true NOT NULL
);
CREATE INDEX table_schema_latest ON table_schema (source, schema, name, version);
CREATE UNIQUE INDEX job_name ON job (name) WHERE status <> 'dropped';
CREATE INDEX event_job ON event (job_id, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('job',1);
INSERT INTO "sqlite_sequence" VALUES('event',2);
INSERT INTO "sqlite_sequence" VALUES('audit',1);
COMMIT;
