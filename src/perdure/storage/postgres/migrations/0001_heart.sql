-- Runs, what they have done, wait for and say, events, who owns runs, and mail between engines.
-- Times are microseconds since the epoch, but for signs of life, which only the server's clock may judge.
--
-- Ids and names sort by their bytes everywhere, whatever the database's own collation is. Payloads are text that a person
-- can read. They need no table of their own here, as they do in SQLite: Postgres keeps what makes a row longer than 2 KB
-- outside of it, does not read it unless asked for, and does not write it again when the rest of the row changes.

create table perdure_schema (
    version integer not null
);

create sequence epochs as bigint;

-- One row per engine there ever was; `batch` is the number of the last batch it committed. Every batch holds a lock on its
-- engine's row, so that who marks the engine as dead waits for it.
create table engines (
    id text collate "C" primary key,
    epoch bigint not null unique,
    alive boolean not null,
    batch bigint not null,
    host text not null,
    pid bigint not null,
    workflows text not null,
    started_at bigint not null
) with (fillfactor = 50);
create index engines_living on engines (id) where alive;

-- Signs of life, apart from the rows that batches lock. Each says how long it lasts.
create table heartbeats (
    engine_id text collate "C" primary key,
    beat_at timestamptz not null,
    lease interval not null
) with (fillfactor = 50);

-- Room is left on the pages, so that a run's row can be changed in its place: then no index is touched unless what it holds
-- has changed.
create table runs (
    id text collate "C" primary key,
    workflow text collate "C" not null,
    workflow_version text collate "C" not null,
    model text not null,
    status text collate "C" not null,
    version bigint not null,
    revision bigint not null,
    owner text collate "C",
    claim bigint not null,
    parent_id text collate "C",
    bond text not null,
    consumed boolean not null default false,
    undo bigint not null,
    origin text not null,
    born bigint not null,
    tags text not null,
    hold_kind text collate "C",
    hold_fingerprint text collate "C",
    deadline bigint,
    attempt bigint not null,
    recoveries bigint not null,
    created_at bigint not null,
    started_at bigint,
    updated_at bigint not null,
    completed_at bigint,
    hold text,
    input text not null,
    output text,
    failure text
) with (fillfactor = 80);

create index runs_created on runs (created_at, id);
create index runs_active on runs (owner, workflow, created_at, id)
    where status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back');
-- Those that an engine takes up when it finds them without an owner; suspended ones wait until they are due.
create index runs_awake on runs (owner, workflow, workflow_version, created_at, id)
    where status in ('created', 'running', 'cancelling', 'rolling_back');
create index runs_unsuccessful on runs (created_at, id)
    where status in ('failed', 'cancelled', 'rolled_back', 'rollback_failed');
create index runs_held on runs (created_at, id) where hold_kind is not null;
create index runs_parent on runs (parent_id, created_at, id) where parent_id is not null;
create index runs_deadline on runs (deadline)
    where deadline is not null and status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back');

-- A run's tags once more, for finding runs by them. The triggers keep them in step, and cost a run without tags nothing.
create table run_tags (
    key text collate "C" not null,
    value text collate "C" not null,
    created_at bigint not null,
    run_id text collate "C" not null,
    primary key (key, value, created_at, run_id)
);

create function write_tags() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' then
        delete from run_tags using json_each_text(old.tags::json) as gone
        where run_tags.key = gone.key and run_tags.value = gone.value
            and run_tags.created_at = old.created_at and run_tags.run_id = old.id;
    end if;
    insert into run_tags (key, value, created_at, run_id)
    select given.key, given.value, new.created_at, new.id from json_each_text(new.tags::json) as given;
    return null;
end
$$;
create trigger run_tags_insert after insert on runs for each row when (new.tags <> '{}') execute function write_tags();
create trigger run_tags_update after update of tags on runs for each row when (old.tags <> new.tags)
    execute function write_tags();

create table journal (
    run_id text collate "C" not null,
    seq bigint not null,
    position text collate "C" not null,
    kind text not null,
    name text not null,
    value text,
    failure text,
    attempts bigint not null,
    started_at bigint not null,
    at bigint not null,
    primary key (run_id, seq)
);

create table journal_archive (
    run_id text collate "C" not null,
    attempt bigint not null,
    seq bigint not null,
    position text collate "C" not null,
    kind text not null,
    name text not null,
    value text,
    failure text,
    attempts bigint not null,
    started_at bigint not null,
    at bigint not null,
    primary key (run_id, attempt, seq)
);

-- `shape` are the names of the fields in `filter`, so that an event finds the waits that it fits without reading the others.
-- `due_at` is 0 where a position was won and its run must go on.
create table waits (
    run_id text collate "C" not null,
    position text collate "C" not null,
    option bigint not null,
    kind text collate "C" not null,
    name text collate "C" not null,
    shape text collate "C" not null,
    filter text collate "C" not null,
    mode text not null,
    target text collate "C",
    number bigint not null,
    due_at bigint,
    attempts bigint not null,
    failure text,
    since bigint not null,
    details text,
    primary key (run_id, position, option)
);
create index waits_due on waits (due_at) where due_at is not null;
-- A filter can be longer than an index takes; its hash finds it, and the rest of the condition makes sure.
create index waits_open on waits (name, shape, hashtextextended(filter, 0), number) where kind = 'event' and due_at is null;
create index waits_target on waits (target) where target is not null and due_at is null;

create table audit (
    run_id text collate "C" not null,
    seq bigint not null,
    version bigint not null,
    was text,
    became text not null,
    cause text not null,
    actor text not null,
    details text not null,
    at bigint not null,
    primary key (run_id, seq)
);

-- The order of events and of waits on them. Every commit that brings some takes a block of 2^20 numbers at once, since
-- a counter in a row would let only one engine commit at a time. The last block taken is never without a number.
create sequence blocks as bigint minvalue 0 start 0;
select nextval('blocks');

-- Without a run: the queue of its name. With one: sent or (`shared`) given to it; with a position, it has won that wait.
-- `reached` is, for a retained event on its way to many, the number of the last wait that has it.
create table events (
    number bigint not null,
    id text collate "C" not null,
    run_id text collate "C",
    position text collate "C",
    option bigint not null,
    shared boolean not null,
    consumed boolean not null,
    name text collate "C" not null,
    expires_at bigint not null,
    fallback text not null,
    key text,
    actor text not null,
    at bigint not null,
    reached bigint,
    fields text not null,
    value text not null
);
create index events_queue on events (name, number) where run_id is null;
create index events_run on events (run_id, number) where run_id is not null;
create index events_expiry on events (expires_at) where position is null;
create index events_reached on events (id) where reached is not null;

-- What was sent with a key, so that it is sent once.
create table event_keys (
    key text collate "C" primary key,
    event_id text collate "C" not null,
    at bigint not null
);
create index event_keys_at on event_keys (at);

-- Which retained events a run has read.
create table event_reads (
    run_id text collate "C" not null,
    event_id text collate "C" not null,
    primary key (run_id, event_id)
);
create index event_reads_event on event_reads (event_id);

create table dead_letters (
    id text collate "C" primary key,
    name text collate "C" not null,
    fields text not null,
    run_id text collate "C" not null,
    status text not null,
    ended_at bigint not null,
    consumed boolean not null,
    at bigint not null,
    value text not null
);
create index dead_letters_name on dead_letters (name, id);

-- `seq` and `number` say which of the words of a run's code a row is: the completion number of the activation that said
-- it, and the place in it. A word that is said again, after a crash, finds itself there.
create table published (
    run_id text collate "C" not null,
    key text collate "C" not null,
    at bigint not null,
    seq bigint not null,
    number bigint not null,
    value text not null,
    primary key (run_id, key)
);

-- What steps append has a position and an attempt, and is never said again: it has no `seq`.
create table stream_items (
    run_id text collate "C" not null,
    stream text collate "C" not null,
    "offset" bigint not null,
    at bigint not null,
    position text collate "C",
    attempt bigint,
    seq bigint,
    number bigint,
    value text not null,
    primary key (run_id, stream, "offset")
);
create unique index stream_items_said on stream_items (run_id, seq, number) where seq is not null;

-- `slot` is where the sender looks for the answer; null: nowhere.
create table mail (
    id bigint generated always as identity primary key,
    run_id text collate "C" not null,
    sender text collate "C" not null,
    slot text collate "C",
    op text not null,
    at bigint not null
);
create unique index mail_slot on mail (slot) where slot is not null;

create table mail_replies (
    slot text collate "C" primary key,
    reply text not null,
    at bigint not null
);
create index mail_replies_at on mail_replies (at);
