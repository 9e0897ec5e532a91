-- Artifacts, tasks for others, and versioned records.

-- `seq` is the journal entry that an artifact was staged with, `number` its place there: what workflow code stages again,
-- after a crash, finds itself there. Content that is not small is in chunks.
create table artifacts (
    id text collate "C" primary key,
    run_id text collate "C" not null,
    name text collate "C" not null,
    type text collate "C" not null,
    form text not null,
    media_type text not null,
    size bigint not null,
    digest text not null,
    workflow text not null,
    step text not null,
    position text collate "C" not null,
    attempt bigint not null,
    seq bigint not null,
    number bigint,
    state text collate "C" not null,
    version bigint,
    staged_at bigint not null,
    published_at bigint,
    chunks bigint not null,
    content text
);
create index artifacts_run on artifacts (run_id, id);
create unique index artifacts_version on artifacts (name, version) where version is not null;
create index artifacts_name on artifacts (name, id);
create index artifacts_type on artifacts (type, id);
create unique index artifacts_said on artifacts (run_id, seq, number) where position = '' and number is not null and seq >= 0;

-- Parts of content. They may be there before their artifact is, and go with their run's end if it never comes. What is
-- already compressed, as files often are, is not worth trying again.
create table artifact_chunks (
    artifact_id text collate "C" not null,
    number bigint not null,
    run_id text collate "C" not null,
    data bytea not null,
    primary key (artifact_id, number)
);
alter table artifact_chunks alter column data set storage external;
create index artifact_chunks_run on artifact_chunks (run_id);

-- A task is `open` until it is answered or withdrawn; it is claimed while `lease_until` has not passed.
create table tasks (
    id text collate "C" primary key,
    run_id text collate "C" not null,
    position text collate "C" not null,
    queue text collate "C" not null,
    kind text collate "C" not null,
    title text not null,
    schema text not null,
    payload text not null,
    status text collate "C" not null,
    worker text collate "C",
    lease_us bigint not null,
    lease_until bigint,
    beat_at bigint,
    details text,
    error text,
    claims bigint not null,
    due_at bigint,
    created_at bigint not null,
    closed_at bigint,
    answered_by text
) with (fillfactor = 80);
create index tasks_open on tasks (queue, id) where status = 'open';
create index tasks_run on tasks (run_id, id);

create table records (
    kind text collate "C" not null,
    name text collate "C" not null,
    version bigint not null,
    digest text not null,
    actor text not null,
    at bigint not null,
    body text not null,
    primary key (kind, name, version)
);

create type artifact_v1 as (
    id text, run_id text, name text, type text, form text, media_type text, size bigint, digest text, workflow text, step text,
    "position" text, attempt bigint, seq bigint, number bigint, state text, version bigint, staged_at bigint,
    published_at bigint, chunks bigint, content text
);
create type chunk_v1 as (run_id text, artifact_id text, number bigint, data bytea);
create type fate_v1 as (run_id text, fate text);
create type task_v1 as (
    id text, run_id text, "position" text, queue text, kind text, title text, schema text, payload text, status text, worker text,
    lease_us bigint, lease_until bigint, beat_at bigint, details text, error text, claims bigint, due_at bigint,
    created_at bigint, closed_at bigint, answered_by text
);
create type task_answer_v1 as (task_id text, worker text, answered_by text, at bigint);
create type stock_v1 as (
    at bigint, chunks chunk_v1[], chunks_gone text[], artifacts artifact_v1[], archive archive_v1[], hops text[],
    fates fate_v1[], tasks task_v1[], answers task_answer_v1[], withdrawn text[]
);

-- Chunks of these runs that no artifact has.
create function drop_stray_chunks_v1(runs text[]) returns void language plpgsql as $$
begin
    delete from artifact_chunks as stray where stray.run_id = any(runs)
        and not exists (select 1 from artifacts where artifacts.id = stray.artifact_id);
end
$$;

-- Give what these runs have staged the next versions of its names, in the order of runs and of staging. Names are locked
-- first, in a statement of their own, so that what is read afterwards has all versions that there are.
create function publish_v1(runs text[], now bigint) returns void language plpgsql as $$
declare
    lock_key bigint;
begin
    for lock_key in
        select distinct hashtextextended(current_schema() || ':artifact:' || name, 0) as key from artifacts
        where run_id = any(runs) and state <> 'published' order by key
    loop
        perform pg_advisory_xact_lock(lock_key);
    end loop;
    update artifacts set state = 'published', published_at = now, version = new.version
    from (
        select
            staged.id,
            coalesce((select max(k.version) from artifacts as k where k.name = staged.name and k.version is not null), 0)
                + row_number() over (
                    partition by staged.name
                    order by ended.place, staged.seq, staged.position = '', coalesce(staged.number, 0), staged.id
                ) as version
        from unnest(runs) with ordinality as ended (run_id, place)
        join artifacts as staged on staged.run_id = ended.run_id and staged.state <> 'published'
    ) as new
    where artifacts.id = new.id;
end
$$;

-- What a batch does to artifacts and tasks, if the rest of it was written (0, as commit_v1 has it); what that said.
-- PD003: a task that is answered is not open, or another worker has it.
create function write_stock_v1(written integer, s stock_v1) returns integer language plpgsql as $$
declare
    counted bigint;
    published text[];
begin
    if written <> 0 then
        return written;
    end if;
    if cardinality(s.chunks) > 0 then
        insert into artifact_chunks (run_id, artifact_id, number, data)
        select run_id, artifact_id, number, data from unnest(s.chunks)
        on conflict (artifact_id, number) do update set data = excluded.data;
    end if;
    if cardinality(s.chunks_gone) > 0 then
        delete from artifact_chunks where artifact_id = any(s.chunks_gone)
            and not exists (select 1 from artifacts where artifacts.id = artifact_chunks.artifact_id);
    end if;
    if cardinality(s.artifacts) > 0 then
        insert into artifacts (
            id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number, state,
            version, staged_at, published_at, chunks, content
        )
        select
            id, run_id, name, type, form, media_type, size, digest, workflow, step, position, attempt, seq, number,
            new.state, version, staged_at, published_at, chunks, content
        from unnest(s.artifacts) as new
        on conflict (run_id, seq, number) where position = '' and number is not null and seq >= 0 do nothing;
        delete from artifact_chunks using unnest(s.artifacts) as new
        where artifact_chunks.artifact_id = new.id and new.chunks > 0
            and not exists (select 1 from artifacts where artifacts.id = new.id);
    end if;
    if cardinality(s.archive) > 0 then
        delete from artifacts using unnest(s.archive) as a
        where artifacts.run_id = a.run_id and artifacts.seq >= a.seq and artifacts.state <> 'published';
        if found then
            perform drop_stray_chunks_v1((select array_agg(run_id) from unnest(s.archive)));
        end if;
    end if;
    if cardinality(s.hops) > 0 then
        update artifacts set seq = seq - 1099511627776 where run_id = any(s.hops) and artifacts.state <> 'published';
    end if;
    if cardinality(s.fates) > 0 then
        delete from artifacts using unnest(s.fates) as ended
        where ended.fate = 'gone' and artifacts.run_id = ended.run_id and artifacts.state <> 'published';
        update artifacts set state = ended.fate from unnest(s.fates) as ended
        where ended.fate in ('aside', 'staged') and artifacts.run_id = ended.run_id
            and artifacts.state not in ('published', ended.fate);
        select coalesce(array_agg(run_id order by place), '{}') into published
        from unnest(s.fates) with ordinality as ended (run_id, fate, place) where fate = 'published';
        if cardinality(published) > 0 then
            perform publish_v1(published, s.at);
        end if;
        perform drop_stray_chunks_v1((
            select coalesce(array_agg(run_id), '{}') from unnest(s.fates) where fate <> 'staged'
        ));
    end if;
    if cardinality(s.tasks) > 0 then
        insert into tasks (
            id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at,
            details, error, claims, due_at, created_at, closed_at, answered_by
        )
        select
            id, run_id, position, queue, kind, title, schema, payload, status, worker, lease_us, lease_until, beat_at,
            details, error, claims, due_at, created_at, closed_at, answered_by
        from unnest(s.tasks);
    end if;
    if cardinality(s.answers) > 0 then
        update tasks set status = 'answered', closed_at = new.at, answered_by = new.answered_by
        from unnest(s.answers) as new
        where tasks.id = new.task_id and tasks.status = 'open' and (new.worker is null or tasks.worker = new.worker);
        get diagnostics counted = row_count;
        if counted <> cardinality(s.answers) then
            raise exception 'a task is not open, or another worker has it' using errcode = 'PD003';
        end if;
    end if;
    if cardinality(s.withdrawn) > 0 then
        update tasks set status = 'withdrawn', closed_at = s.at where id = any(s.withdrawn) and status = 'open';
    end if;
    return 0;
end
$$;

-- Add a version of a record, unless its newest has the same digest; the version that has it.
create function put_record_v1(its_kind text, its_name text, its_digest text, its_actor text, now bigint, its_body text)
returns bigint language plpgsql as $$
declare
    newest bigint;
    known text;
begin
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || ':record:' || its_kind || ':' || its_name, 0));
    select version, digest into newest, known from records where kind = its_kind and name = its_name
    order by version desc limit 1;
    if known = its_digest then
        return newest;
    end if;
    newest := coalesce(newest, 0) + 1;
    insert into records (kind, name, version, digest, actor, at, body)
    values (its_kind, its_name, newest, its_digest, its_actor, now, its_body);
    return newest;
end
$$;
