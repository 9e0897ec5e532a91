-- Events, what waits for them, children, dead letters.

-- Runs anew, with what they need to know of parents and events; payloads stay last.
create table new_runs (
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
    bond text not null default '',
    consumed integer not null default 0,
    undo integer not null default 0,
    origin text not null default '',
    born integer not null default 0,
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
insert into new_runs (
    id, workflow, workflow_version, model, status, version, revision, owner, claim, parent_id, tags, hold_kind,
    hold_fingerprint, deadline, attempt, recoveries, created_at, started_at, updated_at, completed_at, spilled, hold,
    input, output, failure
)
select
    id, workflow, workflow_version, model, status, version, revision, owner, claim, parent_id, tags, hold_kind,
    hold_fingerprint, deadline, attempt, recoveries, created_at, started_at, updated_at, completed_at, spilled, hold,
    input, output, failure
from runs;
drop table runs;
alter table new_runs rename to runs;

create index runs_created on runs (created_at, id);
create index runs_active on runs (owner, workflow, created_at, id)
    where status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back');
-- Those that an engine takes up when it finds them without an owner; suspended ones wait until they are due.
create index runs_awake on runs (owner, workflow, created_at, id)
    where status in ('created', 'running', 'cancelling', 'rolling_back');
create index runs_unsuccessful on runs (created_at, id)
    where status in ('failed', 'cancelled', 'rolled_back', 'rollback_failed');
create index runs_held on runs (created_at, id) where hold_kind is not null;
create index runs_parent on runs (parent_id, created_at, id) where parent_id is not null;
create index runs_deadline on runs (deadline)
    where deadline is not null and status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back');

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

create trigger payloads_outcome after update of output, failure on runs when old.spilled & 6
begin
    delete from payloads where run_id = old.id and slot in ('output', 'failure');
end;

-- Waits anew: several options at a position. `shape` are the names of the fields in `filter`, so that an event finds the
-- waits that it fits without reading the others. `due_at` is 0 where a position was won and its run must go on.
create table new_waits (
    run_id text not null,
    position text not null,
    option integer not null,
    kind text not null,
    name text not null,
    shape text not null,
    filter text not null,
    mode text not null,
    target text,
    number integer not null,
    due_at integer,
    attempts integer not null,
    failure text,
    since integer not null,
    primary key (run_id, position, option)
) without rowid;
insert into new_waits
select run_id, position, 0, kind, name, '', '', '', null, 0, due_at, attempts, failure, since from waits;
drop table waits;
alter table new_waits rename to waits;

create index waits_due on waits (due_at) where due_at is not null;
create index waits_open on waits (name, shape, filter, number) where kind = 'event' and due_at is null;
create index waits_target on waits (target) where target is not null and due_at is null;

-- One count for events and for waits on them: the order in which they came.
create table sequence (value integer not null);
insert into sequence (value) values (0);

-- Without a run: the queue of its name. With one: sent or (`shared`) given to it; with a position, it has won that wait.
-- `reached` is, for a retained event on its way to many, the number of the last wait that has it.
create table events (
    number integer not null,
    id text not null,
    run_id text,
    position text,
    option integer not null,
    shared integer not null,
    consumed integer not null,
    name text not null,
    expires_at integer not null,
    fallback text not null,
    key text,
    actor text not null,
    at integer not null,
    reached integer,
    fields text not null,
    value text not null
);

create index events_queue on events (name, number) where run_id is null;
create index events_run on events (run_id, number) where run_id is not null;
create index events_expiry on events (expires_at) where position is null;
create index events_reached on events (id) where reached is not null;

-- How many events wait in the queue of a name, so that a bound on it costs no counting.
create table queues (
    name text primary key not null,
    length integer not null
) without rowid;

create trigger queues_insert after insert on events when new.run_id is null and new.consumed
begin
    insert into queues (name, length) values (new.name, 1) on conflict (name) do update set length = length + 1;
end;
create trigger queues_delete after delete on events when old.run_id is null and old.consumed
begin
    update queues set length = length - 1 where name = old.name;
    delete from queues where name = old.name and length <= 0;
end;

-- What was sent with a key, so that it is sent once.
create table event_keys (
    key text primary key not null,
    event_id text not null,
    at integer not null
) without rowid;
create index event_keys_at on event_keys (at);

-- Which retained events a run has read.
create table event_reads (
    run_id text not null,
    event_id text not null,
    primary key (run_id, event_id)
) without rowid;
create index event_reads_event on event_reads (event_id);

create table dead_letters (
    id text primary key not null,
    name text not null,
    fields text not null,
    run_id text not null,
    status text not null,
    ended_at integer not null,
    consumed integer not null,
    at integer not null,
    value text not null
);
create index dead_letters_name on dead_letters (name, id);
