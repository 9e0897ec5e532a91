-- What a step reported with its last heartbeat, for its next attempt: JSON, as the engine's codec wrote it.

alter table waits add column details text;
