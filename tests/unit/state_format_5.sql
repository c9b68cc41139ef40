BEGIN TRANSACTION;
CREATE TABLE captured (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	since TEXT NOT NULL, 
	oid BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
INSERT INTO "captured" VALUES('shop','public','orders','1.0000000000',7);
INSERT INTO "captured" VALUES('shop','public','visits','1.0000000000',8);
CREATE TABLE change (
	id INTEGER NOT NULL, 
	number BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "change" VALUES(1,7);
CREATE TABLE connection (
	name TEXT NOT NULL, 
	uri TEXT NOT NULL, 
	created BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "connection" VALUES('shop','postgresql://app:pw@db/shop',1795386184349172432);
CREATE TABLE event (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	code TEXT, 
	table_name TEXT, 
	text TEXT NOT NULL, 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
CREATE TABLE gap (
	source TEXT NOT NULL, 
	schema TEXT NOT NULL, 
	name TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (source, schema, name)
);
INSERT INTO "gap" VALUES('shop','public','visits',1795386184382833897,'changes may be missing');
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
	rate TEXT NOT NULL
);
INSERT INTO "job" VALUES(1,'f','shop','null://','["shop.public.orders", "shop.public.visits"]','{"updated": ""}','CREATE CHANGEFEED f FOR TABLE shop.public.orders, shop.public.visits INTO ''null://'' WITH updated;','pending','running','waits for a node',NULL,NULL,NULL,1795386184362535923,NULL,1795386184362535923,NULL,NULL,NULL,NULL,1,0,0,0,'[0, 0, 0, 0, 0]');
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
	columns TEXT NOT NULL, 
	values_from TEXT NOT NULL, 
	values_to TEXT NOT NULL, 
	partition TEXT, 
	joined BOOLEAN NOT NULL, 
	added_at BIGINT NOT NULL, 
	oid BIGINT DEFAULT '0' NOT NULL, 
	rescan BIGINT DEFAULT '0' NOT NULL, 
	rescanned BIGINT DEFAULT '0' NOT NULL, 
	gap BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (job_id, source, schema, name), 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "job_table" VALUES(1,'shop','public','orders','orders',1,'running',0,NULL,'50.0000000000',NULL,0,0,0,0,NULL,NULL,'[]','[]','[]',NULL,0,1795386184362535923,7,0,0,0);
INSERT INTO "job_table" VALUES(1,'shop','public','visits','visits',2,'running',0,NULL,'50.0000000000',NULL,0,0,0,0,NULL,NULL,'[]','[]','[]',NULL,0,1795386184362535923,8,0,0,0);
CREATE TABLE lease (
	job_id INTEGER NOT NULL, 
	node TEXT, 
	token BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('format','5');
INSERT INTO "meta" VALUES('state_id','d5ttry');
CREATE TABLE node (
	id TEXT NOT NULL, 
	pid INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	started BIGINT NOT NULL, 
	seen BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE source_state (
	name TEXT NOT NULL, 
	slot TEXT NOT NULL, 
	publication TEXT NOT NULL, 
	system_id TEXT NOT NULL, 
	status TEXT NOT NULL, 
	error TEXT NOT NULL, 
	error_code TEXT NOT NULL, 
	position TEXT NOT NULL, 
	frontier TEXT, 
	updated BIGINT NOT NULL, 
	renewal BOOLEAN DEFAULT false NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "source_state" VALUES('shop','changefeed_d5ttry_shop','changefeed_d5ttry_shop','77/5','','','','000000000000000A','50.0000000000',1795386184371805464,0);
INSERT INTO "source_state" VALUES('crm','','','','retrying','cannot connect','CF2001','',NULL,1795386184374701232,0);
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
INSERT INTO "table_schema" VALUES(1,'shop','public','orders','9dd2a17e66b2e5aa','{"columns": [{"form": "native", "logical": "int32", "name": "id", "nullable": false, "number": 1, "physical": "int32", "type_name": "integer"}, {"form": "text", "logical": "text", "name": "note", "nullable": true, "number": 3, "physical": "string", "type_name": "text"}], "identity": "index", "key": [0], "keyless": false, "oid": 7, "table": {"name": "orders", "schema": "public", "source": "shop"}}',1795386184353011468,1);
INSERT INTO "table_schema" VALUES(2,'shop','public','visits','38046a5c506c6f57','{"columns": [{"form": "native", "logical": "int32", "name": "id", "nullable": false, "number": 1, "physical": "int32", "type_name": "integer"}, {"form": "text", "logical": "text", "name": "note", "nullable": true, "number": 3, "physical": "string", "type_name": "text"}], "identity": "full", "key": [0, 1], "keyless": true, "oid": 8, "table": {"name": "visits", "schema": "public", "source": "shop"}}',1795386184355887124,1);
CREATE INDEX table_schema_latest ON table_schema (source, schema, name, version);
CREATE UNIQUE INDEX job_name ON job (name) WHERE status <> 'dropped';
CREATE INDEX event_job ON event (job_id, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('table_schema',2);
INSERT INTO "sqlite_sequence" VALUES('job',1);
COMMIT;
