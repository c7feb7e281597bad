-- A store as dafka 0.1.0 made it, with schema version 2.
BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'dafka','create_tables','2026-11-22 21:15:32.654534+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'dafka','add_partition_times','2026-11-22 21:15:32.670619+00:00');
CREATE TABLE "node" (
   "address" TEXT PRIMARY KEY
);
INSERT INTO "node" VALUES('3E5270AAA5334952824500FE34BF69D3');
CREATE TABLE "partitions" (
   "id" INTEGER PRIMARY KEY,
   "topic" TEXT NOT NULL,
   "address" TEXT NOT NULL,
   "earliest_sequence" INTEGER NOT NULL,
   "end_sequence" INTEGER NOT NULL,
   "content_bytes" INTEGER NOT NULL
, "earliest_stored_at" INTEGER, "latest_stored_at" INTEGER);
INSERT INTO "partitions" VALUES(1,'orders','A',2,6,4,1000,3000);
INSERT INTO "partitions" VALUES(2,X'FF','B',0,1,2,500,500);
INSERT INTO "partitions" VALUES(3,'orders','empty',7,7,0,NULL,NULL);
INSERT INTO "partitions" VALUES(4,'many','A',0,40,94,5000,5000);
CREATE TABLE "positions" (
   "name" TEXT,
   "topic" TEXT,
   "address" TEXT,
   "next_sequence" INTEGER NOT NULL,
   "saved_at" INTEGER NOT NULL,
   PRIMARY KEY ("name", "topic", "address")
);
INSERT INTO "positions" VALUES('billing','orders','A',3,1795382132815);
CREATE TABLE records (
            partition_id INTEGER NOT NULL REFERENCES partitions(id),
            sequence INTEGER NOT NULL,
            stored_at INTEGER NOT NULL,
            content BLOB NOT NULL,
            PRIMARY KEY (partition_id, sequence)
        ) WITHOUT ROWID;
INSERT INTO "records" VALUES(1,2,1000,X'32');
INSERT INTO "records" VALUES(1,3,3000,X'33');
INSERT INTO "records" VALUES(1,4,3000,X'34');
INSERT INTO "records" VALUES(1,5,3000,X'35');
INSERT INTO "records" VALUES(2,0,500,X'3030');
INSERT INTO "records" VALUES(4,0,5000,X'');
INSERT INTO "records" VALUES(4,1,5000,X'FF31');
INSERT INTO "records" VALUES(4,2,5000,X'FF32');
INSERT INTO "records" VALUES(4,3,5000,X'FF33');
INSERT INTO "records" VALUES(4,4,5000,X'FF34');
INSERT INTO "records" VALUES(4,5,5000,X'FF35');
INSERT INTO "records" VALUES(4,6,5000,X'FF36');
INSERT INTO "records" VALUES(4,7,5000,X'');
INSERT INTO "records" VALUES(4,8,5000,X'FF38');
INSERT INTO "records" VALUES(4,9,5000,X'FF39');
INSERT INTO "records" VALUES(4,10,5000,X'FF3130');
INSERT INTO "records" VALUES(4,11,5000,X'FF3131');
INSERT INTO "records" VALUES(4,12,5000,X'FF3132');
INSERT INTO "records" VALUES(4,13,5000,X'FF3133');
INSERT INTO "records" VALUES(4,14,5000,X'');
INSERT INTO "records" VALUES(4,15,5000,X'FF3135');
INSERT INTO "records" VALUES(4,16,5000,X'FF3136');
INSERT INTO "records" VALUES(4,17,5000,X'FF3137');
INSERT INTO "records" VALUES(4,18,5000,X'FF3138');
INSERT INTO "records" VALUES(4,19,5000,X'FF3139');
INSERT INTO "records" VALUES(4,20,5000,X'FF3230');
INSERT INTO "records" VALUES(4,21,5000,X'');
INSERT INTO "records" VALUES(4,22,5000,X'FF3232');
INSERT INTO "records" VALUES(4,23,5000,X'FF3233');
INSERT INTO "records" VALUES(4,24,5000,X'FF3234');
INSERT INTO "records" VALUES(4,25,5000,X'FF3235');
INSERT INTO "records" VALUES(4,26,5000,X'FF3236');
INSERT INTO "records" VALUES(4,27,5000,X'FF3237');
INSERT INTO "records" VALUES(4,28,5000,X'');
INSERT INTO "records" VALUES(4,29,5000,X'FF3239');
INSERT INTO "records" VALUES(4,30,5000,X'FF3330');
INSERT INTO "records" VALUES(4,31,5000,X'FF3331');
INSERT INTO "records" VALUES(4,32,5000,X'FF3332');
INSERT INTO "records" VALUES(4,33,5000,X'FF3333');
INSERT INTO "records" VALUES(4,34,5000,X'FF3334');
INSERT INTO "records" VALUES(4,35,5000,X'');
INSERT INTO "records" VALUES(4,36,5000,X'FF3336');
INSERT INTO "records" VALUES(4,37,5000,X'FF3337');
INSERT INTO "records" VALUES(4,38,5000,X'FF3338');
INSERT INTO "records" VALUES(4,39,5000,X'FF3339');
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE UNIQUE INDEX "idx_partitions_topic_address"
    ON "partitions" ("topic", "address");
CREATE VIEW "topic_records" AS SELECT topic, address, sequence, stored_at, content
           FROM records JOIN partitions ON partitions.id = records.partition_id;
COMMIT;
PRAGMA application_id = 1145128523;
PRAGMA user_version = 2;
