-- What steps and children were called with, in short, so that a replay notices when that changes. Entries from before have none.

alter table journal add column digest text not null default '';
alter table journal_archive add column digest text not null default '';
