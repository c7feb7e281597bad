PRAGMA application_id=1145128523;
PRAGMA user_version=4;
BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'dafka','create_tables','2026-11-30 22:34:08.861969+00:00');
CREATE TABLE "node" (
   "address" TEXT PRIMARY KEY
);
INSERT INTO "node" VALUES('4571BA16631148AB8289B10237959F6F');
CREATE TABLE "partitions" (
   "id" INTEGER PRIMARY KEY,
   "topic" TEXT NOT NULL,
   "address" TEXT NOT NULL,
   "earliest_sequence" INTEGER NOT NULL,
   "end_sequence" INTEGER NOT NULL,
   "content_bytes" INTEGER NOT NULL,
   "earliest_stored_at" INTEGER,
   "latest_stored_at" INTEGER,
   "compacted_end" INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "partitions" VALUES(1,'orders','PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP',0,3,22,1796078048885,1796078048890,0);
CREATE TABLE "positions" (
   "name" TEXT,
   "topic" TEXT,
   "address" TEXT,
   "next_sequence" INTEGER NOT NULL,
   "saved_at" INTEGER NOT NULL,
   PRIMARY KEY ("name", "topic", "address")
);
INSERT INTO "positions" VALUES('reader','orders','PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP',2,1796078048891);
CREATE TABLE records (
            partition_id INTEGER NOT NULL REFERENCES partitions(id),
            sequence INTEGER NOT NULL,
            stored_at INTEGER NOT NULL,
            content BLOB,
            key BLOB,
            headers TEXT,
            timestamp INTEGER,
            PRIMARY KEY (partition_id, sequence)
        ) WITHOUT ROWID;
INSERT INTO "records" VALUES(1,0,1796078048885,X'6669727374',X'6B6579',NULL,1700000000000);
INSERT INTO "records" VALUES(1,1,1796078048885,NULL,NULL,NULL,1700000000001);
INSERT INTO "records" VALUES(1,2,1796078048890,X'7468697264',NULL,'[["name","value"]]',1700000000002);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE UNIQUE INDEX "idx_partitions_topic_address"
    ON "partitions" ("topic", "address");
CREATE VIEW "topic_records" AS SELECT topic, address, sequence, stored_at, content, key, headers, timestamp
           FROM records JOIN partitions ON partitions.id = records.partition_id;
COMMIT;
