BEGIN TRANSACTION;
CREATE TABLE annotators (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL UNIQUE,
  active INTEGER NOT NULL DEFAULT 1
) STRICT;
INSERT INTO "annotators" VALUES(1,'annotator-1','sUN-tS0SVd-lWW62',1);
INSERT INTO "annotators" VALUES(2,'annotator-2','UBfjlr-d2iPf7cHc',1);
CREATE TABLE answers (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  annotator TEXT NOT NULL REFERENCES annotators (name),
  instance_id TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision > 0),
  verdict TEXT NOT NULL CHECK (verdict IN ('ranked', 'cannot_tell', 'skipped', 'withdrawn')),
  ranking TEXT,            -- JSON list of candidate positions, best first
  shown TEXT NOT NULL,     -- JSON list of candidate positions, as they stood on the page
  seconds REAL NOT NULL,
  at TEXT NOT NULL,
  UNIQUE (annotator, instance_id, revision),
  CHECK ((verdict = 'ranked') = (ranking IS NOT NULL))
) STRICT;
INSERT INTO "answers" VALUES(1,'annotator-1','1da267508f54f1b5',1,'ranked','[1, 3, 0, 2]','[1, 3, 0, 2]',2.5,'2026-11-27T10:11:52+00:00');
INSERT INTO "answers" VALUES(2,'annotator-2','b861db72bdaac67a',1,'ranked','[0, 2, 3, 1]','[0, 2, 3, 1]',2.5,'2026-11-27T10:11:52+00:00');
INSERT INTO "answers" VALUES(3,'annotator-2','a10024f07cf6b5df',1,'ranked','[3, 1, 0, 2]','[3, 1, 0, 2]',2.5,'2026-11-27T10:11:52+00:00');
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "settings" VALUES('overlap','2');
INSERT INTO "settings" VALUES('instances','6');
CREATE TRIGGER answers_are_not_changed BEFORE UPDATE ON answers
  BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
CREATE TRIGGER answers_are_not_deleted BEFORE DELETE ON answers
  BEGIN SELECT RAISE(ABORT, 'answers are append-only'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('answers',3);
COMMIT;
PRAGMA user_version = 1;
