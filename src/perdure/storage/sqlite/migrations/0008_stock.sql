-- Artifacts, tasks for others, and versioned records.

-- `seq` is the journal entry that an artifact was staged with, `number` its place there: what workflow code stages again,
-- after a crash, finds itself there. Content stands last, so that listing never reads it; what is not small is in chunks.
create table artifacts (
    id text primary key not null,
    run_id text not null,
    name text not null,
    type text not null,
    form text not null,
    media_type text not null,
    size integer not null,
    digest text not null,
    workflow text not null,
    step text not null,
    position text not null,
    attempt integer not null,
    seq integer not null,
    number integer,
    state text not null,
    version integer,
    staged_at integer not null,
    published_at integer,
    chunks integer not null,
    content text
);
create index artifacts_run on artifacts (run_id, id);
create unique index artifacts_version on artifacts (name, version) where version is not null;
create index artifacts_name on artifacts (name, id);
create index artifacts_type on artifacts (type, id);
create unique index artifacts_said on artifacts (run_id, seq, number) where position = '' and number is not null and seq >= 0;

-- Parts of content. They may be there before their artifact is, and go with their run's end if it never comes.
create table artifact_chunks (
    artifact_id text not null,
    number integer not null,
    run_id text not null,
    data blob not null,
    primary key (artifact_id, number)
);
create index artifact_chunks_run on artifact_chunks (run_id);

-- A task is `open` until it is answered or withdrawn; it is claimed while `lease_until` has not passed.
create table tasks (
    id text primary key not null,
    run_id text not null,
    position text not null,
    queue text not null,
    kind text not null,
    title text not null,
    status text not null,
    worker text,
    lease_us integer not null,
    lease_until integer,
    beat_at integer,
    claims integer not null,
    due_at integer,
    created_at integer not null,
    closed_at integer,
    answered_by text,
    error text,
    details text,
    schema text not null,
    payload text not null
);
create index tasks_open on tasks (queue, id) where status = 'open';
create index tasks_run on tasks (run_id, id);

create table records (
    kind text not null,
    name text not null,
    version integer not null,
    digest text not null,
    actor text not null,
    at integer not null,
    body text not null,
    primary key (kind, name, version)
);
