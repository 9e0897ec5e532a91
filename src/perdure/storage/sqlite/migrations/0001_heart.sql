-- Runs, what they have done and wait for, who owns them, and mail between engines.
-- Times are microseconds since the epoch. Needs SQLite 3.33 (update … from).

create table perdure_schema (
    version integer not null
);

-- One row per engine there ever was; `batch` is the number of the last batch it committed.
create table engines (
    id text primary key not null,
    epoch integer not null unique,
    alive integer not null,
    batch integer not null,
    host text not null,
    pid integer not null,
    workflows text not null,
    started_at integer not null
) without rowid;

-- Payloads stand last, so that listing never reads the pages they overflow to; `spilled` says which of them are in
-- the table payloads instead: 1 input, 2 output, 4 failure. The table keeps its rowid on purpose: rows can be kilobytes
-- long, and updating a hundred of them was measured three times slower without.
create table runs (
    id text primary key not null,
    workflow text not null,
    workflow_version text not null,
    model text not null,
    status text not null,
    version integer not null,
    revision integer not null,
    owner text,
    claim integer not null,
    parent_id text,
    tags text not null,
    hold_kind text,
    hold_fingerprint text,
    deadline integer,
    attempt integer not null,
    recoveries integer not null,
    created_at integer not null,
    started_at integer,
    updated_at integer not null,
    completed_at integer,
    spilled integer not null,
    hold text,
    input text,
    output text,
    failure text,
    check (input is not null or spilled & 1)
);

-- A start and a finish touch the first two of these and no other.
create index runs_created on runs (created_at, id);
create index runs_active on runs (owner, workflow, created_at, id)
    where status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back');
create index runs_unsuccessful on runs (created_at, id)
    where status in ('failed', 'cancelled', 'rolled_back', 'rollback_failed');
create index runs_held on runs (created_at, id) where hold_kind is not null;
create index runs_parent on runs (parent_id, created_at, id) where parent_id is not null;

-- A run's tags once more, for finding runs by them. The triggers keep them in step, and cost a run without tags nothing.
create table run_tags (
    key text not null,
    value text not null,
    created_at integer not null,
    run_id text not null,
    primary key (key, value, created_at, run_id)
) without rowid;

create trigger run_tags_insert after insert on runs when new.tags <> '{}'
begin
    insert into run_tags (key, value, created_at, run_id)
    select key, value, new.created_at, new.id from json_each(new.tags);
end;

create trigger run_tags_update after update of tags on runs when old.tags <> new.tags
begin
    delete from run_tags
    where (key, value) in (select key, value from json_each(old.tags))
        and created_at = old.created_at and run_id = old.id;
    insert into run_tags (key, value, created_at, run_id)
    select key, value, new.created_at, new.id from json_each(new.tags);
end;

-- `spilled` 1: the value is in the table payloads; 2: the failure is.
create table journal (
    run_id text not null,
    seq integer not null,
    position text not null,
    kind text not null,
    name text not null,
    value text,
    failure text,
    attempts integer not null,
    started_at integer not null,
    at integer not null,
    spilled integer not null,
    primary key (run_id, seq)
) without rowid;

create table journal_archive (
    run_id text not null,
    attempt integer not null,
    seq integer not null,
    position text not null,
    kind text not null,
    name text not null,
    value text,
    failure text,
    attempts integer not null,
    started_at integer not null,
    at integer not null,
    spilled integer not null,
    primary key (run_id, attempt, seq)
) without rowid;

create table waits (
    run_id text not null,
    position text not null,
    kind text not null,
    name text not null,
    due_at integer,
    attempts integer not null,
    failure text,
    since integer not null,
    primary key (run_id, position)
) without rowid;

create index waits_due on waits (due_at) where due_at is not null;

create table audit (
    run_id text not null,
    seq integer not null,
    version integer not null,
    was text,
    became text not null,
    cause text not null,
    actor text not null,
    details text not null,
    at integer not null,
    primary key (run_id, seq)
) without rowid;

create table mail (
    id integer primary key autoincrement,
    run_id text not null,
    sender text not null,
    op text not null,
    at integer not null
);

create table mail_replies (
    id integer primary key,
    reply text not null
);

-- What is too large for a row of its own table. Slots: input, output, failure, entry:<seq>, archive:<attempt>:<seq>.
create table payloads (
    run_id text not null,
    slot text not null,
    data text not null,
    primary key (run_id, slot)
);

-- A new outcome takes the old one's large payloads with it; the new one's are inserted afterwards.
create trigger payloads_outcome after update of output, failure on runs when old.spilled & 6
begin
    delete from payloads where run_id = old.id and slot in ('output', 'failure');
end;
