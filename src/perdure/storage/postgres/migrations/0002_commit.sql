-- A commit as functions, so that a batch crosses the network once. Each has a version in its name: engines of an earlier
-- Perdure that still run go on calling theirs after a newer one has brought its own.
--
-- Under READ COMMITTED every statement of such a function sees what was committed before that statement. Their own errors:
--   PD001  a run, a key or mail was not as expected
--   PD002  the batch has to do with events, or with ends of runs that somebody waits for: it needs matching
--   PD003  a dead letter was dealt with by somebody else
--   40001  something changed meanwhile that was found a moment ago: the same batch, sent again, finds it as it is now

create type new_run_v1 as (
    id text, workflow text, model text, parent_id text, bond text, created_at bigint, workflow_version text, status text,
    version bigint, revision bigint, owner text, claim bigint, tags text, hold_kind text, hold_fingerprint text, hold text,
    deadline bigint, attempt bigint, recoveries bigint, undo bigint, origin text, started_at bigint, updated_at bigint,
    completed_at bigint, input text, output text, failure text, born bigint
);
create type changed_run_v1 as (
    id text, expected_owner text, expected_version bigint, expected_claim bigint, workflow_version text, status text,
    version bigint, revision bigint, owner text, claim bigint, tags text, hold_kind text, hold_fingerprint text, hold text, deadline bigint,
    attempt bigint, recoveries bigint, undo bigint, origin text, started_at bigint, updated_at bigint, completed_at bigint,
    has_outcome boolean, output text, failure text, has_input boolean, workflow text, input text
);
create type entry_v1 as (
    run_id text, seq bigint, "position" text, kind text, name text, value text, failure text, attempts bigint,
    started_at bigint, at bigint
);
create type wait_v1 as (
    run_id text, "position" text, option bigint, kind text, name text, shape text, filter text, mode text, target text,
    number bigint, due_at bigint, attempts bigint, failure text, since bigint, details text
);
create type audit_v1 as (
    run_id text, seq bigint, version bigint, was text, became text, cause text, actor text, details text, at bigint
);
create type mail_v1 as (run_id text, sender text, slot text, op text, at bigint);
create type published_v1 as (run_id text, key text, at bigint, seq bigint, number bigint, value text);
create type stream_item_v1 as (
    run_id text, stream text, at bigint, "position" text, attempt bigint, seq bigint, number bigint, value text
);
create type event_v1 as (
    number bigint, id text, run_id text, "position" text, option bigint, shared boolean, consumed boolean, name text,
    expires_at bigint, fallback text, key text, actor text, at bigint, reached bigint, fields text, value text
);
create type letter_v1 as (
    id text, name text, fields text, run_id text, status text, ended_at bigint, consumed boolean, at bigint, value text
);
create type place_v1 as (run_id text, id text);  -- of an event or a position: whose, and which
create type given_v1 as (run_id text, id text, "position" text, option bigint);
create type archive_v1 as (run_id text, seq bigint, attempt bigint);
create type key_v1 as (key text, event_id text);
create type reply_v1 as (id bigint, reply text, at bigint);
create type guard_v1 as (id text, owner text, version bigint, claim bigint);
create type reached_v1 as (name text, number bigint, reached bigint);

-- What a batch writes beside events and waits.
create type writes_v1 as (
    new_runs new_run_v1[], changed_runs changed_run_v1[], archive archive_v1[], hops text[], journal entry_v1[],
    consumed text[], audit audit_v1[], mail mail_v1[], mail_done reply_v1[], published published_v1[],
    stream_items stream_item_v1[]
);

-- Move an engine's row on to a batch, and hold it: 0. It had landed before: 1. It must not be written: 2.
create function advance_v1(engine text, its_epoch bigint, number bigint) returns integer language plpgsql as $$
begin
    update engines set batch = number where id = engine and epoch = its_epoch and alive and batch = number - 1;
    if found then
        return 0;
    end if;
    perform 1 from engines where id = engine and epoch = its_epoch and batch = number;
    return case when found then 1 else 2 end;
end
$$;

create function write_runs_v1(new_runs new_run_v1[], changed_runs changed_run_v1[]) returns void language plpgsql as $$
declare
    written bigint;
    last_number bigint;
begin
    if cardinality(new_runs) > 0 then
        -- A run that does not know its place among the batch's numbers was born after all that have been given so far.
        select last_value << 20 into last_number from blocks;
        insert into runs (
            id, workflow, model, parent_id, bond, created_at, workflow_version, status, version, revision, owner, claim,
            tags, hold_kind, hold_fingerprint, hold, deadline, attempt, recoveries, undo, origin, started_at, updated_at,
            completed_at, input, output, failure, born
        )
        select
            id, workflow, model, parent_id, bond, created_at, workflow_version, status, version, revision, owner, claim,
            tags, hold_kind, hold_fingerprint, hold, deadline, attempt, recoveries, undo, origin, started_at, updated_at,
            completed_at, input, output, failure, coalesce(born, last_number)
        from unnest(new_runs)
        on conflict (id) do nothing;
        get diagnostics written = row_count;
        if written <> cardinality(new_runs) then
            raise exception 'an id is taken' using errcode = 'PD001';
        end if;
    end if;
    if cardinality(changed_runs) > 0 then
        update runs set
            workflow_version = new.workflow_version, status = new.status, version = new.version,
            revision = new.revision, owner = new.owner, claim = new.claim, tags = new.tags, hold_kind = new.hold_kind,
            hold_fingerprint = new.hold_fingerprint, hold = new.hold, deadline = new.deadline, attempt = new.attempt,
            recoveries = new.recoveries, undo = new.undo, origin = new.origin, started_at = new.started_at,
            updated_at = new.updated_at, completed_at = new.completed_at,
            output = case when new.has_outcome then new.output else runs.output end,
            failure = case when new.has_outcome then new.failure else runs.failure end,
            workflow = case when new.has_input then new.workflow else runs.workflow end,
            input = case when new.has_input then new.input else runs.input end
        from unnest(changed_runs) as new
        where runs.id = new.id and runs.version = new.expected_version and runs.claim = new.expected_claim
            and runs.owner is not distinct from new.expected_owner;
        get diagnostics written = row_count;
        if written <> cardinality(changed_runs) then
            raise exception 'a run is not as expected' using errcode = 'PD001';
        end if;
    end if;
end
$$;

-- Leave mail, unless its slot shows that it was left before; the id of the last that was left, or 0.
create function post_v1(letters mail_v1[]) returns bigint language plpgsql as $$
declare
    left_last bigint := 0;
begin
    if cardinality(letters) = 0 then
        return 0;
    end if;
    with posted as (
        insert into mail (run_id, sender, slot, op, at)
        select letter.run_id, letter.sender, letter.slot, letter.op, letter.at
        from unnest(letters) with ordinality as letter (run_id, sender, slot, op, at, place) order by letter.place
        on conflict (slot) where slot is not null do nothing
        returning id
    )
    select coalesce(max(id), 0) into left_last from posted;
    -- It may have been answered a moment ago: that shows in the table of answers, and only now.
    delete from mail using unnest(letters) as letter
    where mail.slot = letter.slot and exists (select 1 from mail_replies where slot = letter.slot);
    return case when found and cardinality(letters) = 1 then 0 else left_last end;
end
$$;

create function write_rest_v1(w writes_v1) returns void language plpgsql as $$
declare
    counted bigint;
begin
    if cardinality(w.archive) > 0 then
        insert into journal_archive (
            run_id, attempt, seq, position, kind, name, value, failure, attempts, started_at, at
        )
        select j.run_id, a.attempt, j.seq, j.position, j.kind, j.name, j.value, j.failure, j.attempts, j.started_at, j.at
        from unnest(w.archive) as a join journal as j on j.run_id = a.run_id and j.seq >= a.seq;
        delete from journal using unnest(w.archive) as a where journal.run_id = a.run_id and journal.seq >= a.seq;
    end if;
    if cardinality(w.hops) > 0 then
        delete from journal where run_id = any(w.hops);
        delete from journal_archive where run_id = any(w.hops);
        delete from audit where run_id = any(w.hops);
    end if;
    if cardinality(w.journal) > 0 then
        insert into journal (run_id, seq, position, kind, name, value, failure, attempts, started_at, at)
        select run_id, seq, position, kind, name, value, failure, attempts, started_at, at from unnest(w.journal);
    end if;
    if cardinality(w.consumed) > 0 then
        update runs set consumed = true where id = any(w.consumed) and not consumed;
    end if;
    if cardinality(w.audit) > 0 then
        insert into audit (run_id, seq, version, was, became, cause, actor, details, at)
        select run_id, seq, version, was, became, cause, actor, details, at from unnest(w.audit);
    end if;
    if cardinality(w.mail_done) > 0 then
        insert into mail_replies (slot, reply, at)
        select mail.slot, done.reply, done.at from unnest(w.mail_done) as done
        join mail on mail.id = done.id where mail.slot is not null
        on conflict (slot) do update set reply = excluded.reply, at = excluded.at;
        delete from mail using unnest(w.mail_done) as done where mail.id = done.id;
        get diagnostics counted = row_count;
        if counted <> cardinality(w.mail_done) then
            raise exception 'mail was answered by somebody else' using errcode = 'PD001';
        end if;
    end if;
    perform post_v1(w.mail);
    if cardinality(w.stream_items) > 0 then
        -- One engine after the other adds to a run's streams, so that each sees how long they are.
        perform 1 from runs where id in (select run_id from unnest(w.stream_items)) order by id for no key update;
        insert into stream_items (run_id, stream, "offset", at, position, attempt, seq, number, value)
        select
            new.run_id, new.stream,
            coalesce((select max("offset") from stream_items as s where s.run_id = new.run_id and s.stream = new.stream), 0)
                + row_number() over (partition by new.run_id, new.stream order by new.place),
            new.at, new.position, new.attempt, new.seq, new.number, new.value
        from unnest(w.stream_items)
            with ordinality as new (run_id, stream, at, position, attempt, seq, number, value, place)
        where new.seq is null or not exists (
            select 1 from stream_items as s where s.run_id = new.run_id and s.seq = new.seq and s.number = new.number
        );
    end if;
    if cardinality(w.published) > 0 then
        insert into published (run_id, key, at, seq, number, value)
        select run_id, key, at, seq, number, value from unnest(w.published)
        on conflict (run_id, key) do update
            set at = excluded.at, seq = excluded.seq, number = excluded.number, value = excluded.value
            where (excluded.seq, excluded.number) > (published.seq, published.number);
    end if;
    -- From an activation on, a run's words may be said anew; what it shows stays until it is.
    if cardinality(w.archive) > 0 then
        update stream_items set seq = null, number = null from unnest(w.archive) as a
        where stream_items.run_id = a.run_id and stream_items.seq >= a.seq;
        update published set seq = a.seq - 1, number = 9223372036854775807 from unnest(w.archive) as a
        where published.run_id = a.run_id and published.seq >= a.seq;
    end if;
    if exists (select 1 from unnest(w.changed_runs) where has_input) then
        update stream_items set seq = null, number = null from unnest(w.changed_runs) as r
        where r.has_input and stream_items.run_id = r.id and stream_items.seq is not null;
        update published set seq = -1, number = 0 from unnest(w.changed_runs) as r
        where r.has_input and published.run_id = r.id;
    end if;
end
$$;

-- Numbers of waits are counted from `base`; those without one have 0.
create function write_waits_v1(cleared text[], dropped place_v1[], put wait_v1[], base bigint) returns void
language plpgsql as $$
begin
    if cardinality(cleared) > 0 then
        delete from waits where run_id = any(cleared);
    end if;
    if cardinality(dropped) > 0 then
        delete from waits using unnest(dropped) as gone where waits.run_id = gone.run_id and waits.position = gone.id;
    end if;
    if cardinality(put) > 0 then
        insert into waits (
            run_id, position, option, kind, name, shape, filter, mode, target, number, due_at, attempts, failure, since,
            details
        )
        select
            run_id, position, option, kind, name, shape, filter, mode, target,
            case when number > 0 then base + number else 0 end, due_at, attempts, failure, since, details
        from unnest(put)
        on conflict (run_id, position, option) do update set
            kind = excluded.kind, name = excluded.name, shape = excluded.shape, filter = excluded.filter,
            mode = excluded.mode, target = excluded.target, number = excluded.number, due_at = excluded.due_at,
            attempts = excluded.attempts, failure = excluded.failure, since = excluded.since,
            details = excluded.details;
    end if;
end
$$;

-- Whether the end of these runs, and the loss of these waits, is of interest to nobody.
create function is_quiet_v1(ended text[], cleared text[], dropped place_v1[]) returns boolean language plpgsql as $$
begin
    if cardinality(ended) > 0 and exists (
        select 1 from waits where target = any(ended) and due_at is null
    ) then
        return false;
    end if;
    if cardinality(cleared) > 0 and (
        exists (select 1 from events where run_id = any(cleared))
        or exists (select 1 from event_reads where run_id = any(cleared))
        or exists (select 1 from waits where run_id = any(cleared) and kind = 'event' and due_at is null)
    ) then
        return false;
    end if;
    return cardinality(dropped) = 0 or not (
        exists (
            select 1 from unnest(dropped) as gone
            join events on events.run_id = gone.run_id and events.position = gone.id
        )
        or exists (
            select 1 from unnest(dropped) as gone
            join waits on waits.run_id = gone.run_id and waits.position = gone.id
            where waits.kind = 'event' and waits.due_at is null
        )
    );
end
$$;

-- A whole batch that brings no events, reads none, and puts no waits for them or for ends of runs: 0, 1 or 2 as advance_v1.
create function commit_v1(
    engine text, its_epoch bigint, number bigint, ended text[], cleared text[], dropped place_v1[], put wait_v1[], w writes_v1
) returns integer language plpgsql as $$
declare
    state integer;
begin
    state := advance_v1(engine, its_epoch, number);
    if state <> 0 then
        return state;
    end if;
    if not is_quiet_v1(ended, cleared, dropped) then
        raise exception 'needs matching' using errcode = 'PD002';
    end if;
    perform write_runs_v1(w.new_runs, w.changed_runs);
    -- Who waits for the end of a run holds its row until its wait is there: now it would be seen.
    if cardinality(ended) > 0 and not is_quiet_v1(ended, '{}', '{}') then
        raise exception 'needs matching' using errcode = 'PD002';
    end if;
    perform write_waits_v1(cleared, dropped, put, 0);
    perform write_rest_v1(w);
    return 0;
end
$$;

-- The first half of a batch that needs matching, inside a transaction: the fence, all locks, and the waits. The state as
-- advance_v1 has it, and the number that the batch's own are counted from.
--
-- Names of events are locked before anything is read for matching: shared by those who begin to wait or cease to, alone
-- by those who send, or whose events may go back to their queue. So either side sees what the other has written.
create function prepare_v1(
    engine text, its_epoch bigint, number bigint, at bigint, numbered boolean, names_sent text[], names_awaited text[],
    spread text[], changed guard_v1[], guards guard_v1[], keys key_v1[], targets text[], cleared text[], forgotten text[],
    dropped place_v1[], read place_v1[], put wait_v1[], out state integer, out base bigint
) language plpgsql as $$
declare
    alone text[];
    together text[];
    now_alone text[];
    lock_key bigint;
    is_alone boolean;
    counted bigint;
begin
    base := 0;
    state := advance_v1(engine, its_epoch, number);
    if state <> 0 then
        return;
    end if;
    alone := names_sent || names_to_return_v1(cleared, dropped, read, spread);
    together := names_awaited || names_to_leave_v1(cleared, dropped);
    for lock_key, is_alone in
        select hashtextextended(current_schema() || ':' || names.name, 0) as key, bool_or(names.is_alone)
        from (
            select unnest(alone) as name, true as is_alone union all select unnest(together), false
        ) as names
        group by key order by key
    loop
        if is_alone then
            perform pg_advisory_xact_lock(lock_key);
        else
            perform pg_advisory_xact_lock_shared(lock_key);
        end if;
    end loop;
    -- What was given to these runs while this waited for its locks must go back under a lock that it has.
    now_alone := names_to_return_v1(cleared, dropped, read, spread);
    if not now_alone <@ alone or not names_to_leave_v1(cleared, dropped) <@ (alone || together) then
        raise exception 'events were given meanwhile' using errcode = '40001';
    end if;

    select count(*) into counted from (
        select runs.id from runs join unnest(changed) as expected on runs.id = expected.id
        where runs.version = expected.version and runs.claim = expected.claim
            and runs.owner is not distinct from expected.owner
        order by runs.id for no key update of runs
    ) as locked;
    if counted <> cardinality(changed) then
        raise exception 'a run is not as expected' using errcode = 'PD001';
    end if;
    select count(*) into counted from (
        select runs.id from runs join unnest(guards) as expected on runs.id = expected.id
        where runs.version = expected.version and runs.claim = expected.claim
            and runs.owner is not distinct from expected.owner
        order by runs.id for share of runs
    ) as locked;
    if counted <> cardinality(guards) then
        raise exception 'a run is not as expected' using errcode = 'PD001';
    end if;
    -- Either its end sees the wait, or the wait sees its end.
    if cardinality(targets) > 0 then
        perform 1 from runs where id = any(targets) order by id for share;
    end if;
    if cardinality(keys) > 0 then
        insert into event_keys (key, event_id, at) select new.key, new.event_id, prepare_v1.at from unnest(keys) as new
        on conflict (key) do nothing;
        get diagnostics counted = row_count;
        if counted <> cardinality(keys) then
            raise exception 'a key was used before' using errcode = 'PD001';
        end if;
    end if;

    if numbered then
        base := (nextval('blocks') - 1) << 20;
    else
        select last_value << 20 into base from blocks;
    end if;
    if cardinality(read) > 0 then
        insert into event_reads (run_id, event_id)
        select events.run_id, events.id from unnest(read) as new
        join events on events.run_id = new.run_id and events.id = new.id and not events.consumed
        on conflict do nothing;
        delete from events using unnest(read) as new where events.run_id = new.run_id and events.id = new.id;
    end if;
    if cardinality(forgotten) > 0 then
        delete from event_reads where run_id = any(forgotten);
    end if;
    perform write_waits_v1(cleared, dropped, put, base);
end
$$;

-- Names of the events that leave these runs and positions, but for those that were read.
create function names_to_return_v1(cleared text[], dropped place_v1[], read place_v1[], spread text[]) returns text[]
language plpgsql as $$
declare
    found_names text[] := '{}';
    more text[];
begin
    if cardinality(cleared) > 0 then
        select coalesce(array_agg(distinct events.name), '{}') into more from events
        where events.run_id = any(cleared)
            and not exists (select 1 from unnest(read) as r where r.run_id = events.run_id and r.id = events.id);
        found_names := found_names || more;
    end if;
    if cardinality(dropped) > 0 then
        select coalesce(array_agg(distinct events.name), '{}') into more from unnest(dropped) as gone
        join events on events.run_id = gone.run_id and events.position = gone.id
        where not exists (select 1 from unnest(read) as r where r.run_id = events.run_id and r.id = events.id);
        found_names := found_names || more;
    end if;
    if cardinality(spread) > 0 then
        select coalesce(array_agg(distinct name), '{}') into more from events
        where reached is not null and id = any(spread);
        found_names := found_names || more;
    end if;
    return found_names;
end
$$;

-- Names of the events that these runs and positions still wait for.
create function names_to_leave_v1(cleared text[], dropped place_v1[]) returns text[] language plpgsql as $$
declare
    found_names text[] := '{}';
    more text[];
begin
    if cardinality(cleared) > 0 then
        select coalesce(array_agg(distinct name), '{}') into more from waits
        where run_id = any(cleared) and kind = 'event' and due_at is null;
        found_names := found_names || more;
    end if;
    if cardinality(dropped) > 0 then
        select coalesce(array_agg(distinct waits.name), '{}') into more from unnest(dropped) as gone
        join waits on waits.run_id = gone.run_id and waits.position = gone.id
        where waits.kind = 'event' and waits.due_at is null;
        found_names := found_names || more;
    end if;
    return found_names;
end
$$;

-- The second half: what matching came to, and the rest of the batch. Of the winners that are not in the batch, those that
-- another living engine owns get their mail, and are returned.
create function finish_v1(
    engine text, knocks mail_v1[], keys_refused text[], letters_gone text[], given given_v1[], gone place_v1[], freed place_v1[], moved reached_v1[],
    placed event_v1[], dead letter_v1[], far reached_v1[], marks place_v1[], won place_v1[], w writes_v1
) returns text[] language plpgsql as $$
declare
    counted bigint;
    told text[] := '{}';
begin
    if cardinality(won) > 0 then
        -- Somebody else may have won the position, or left it, since it was found open.
        select count(*) into counted from (
            select distinct open.run_id, open.position from (
                select waits.run_id, waits.position from waits
                join unnest(won) as new on waits.run_id = new.run_id and waits.position = new.id
                where waits.due_at is null order by waits.run_id, waits.position for update of waits
            ) as open
        ) as positions;
        if counted <> cardinality(won) then
            raise exception 'a wait was won meanwhile' using errcode = '40001';
        end if;
    end if;
    if cardinality(keys_refused) > 0 then
        delete from event_keys where key = any(keys_refused);
    end if;
    if cardinality(letters_gone) > 0 then
        delete from dead_letters where id = any(letters_gone);
        get diagnostics counted = row_count;
        if counted <> cardinality(letters_gone) then
            raise exception 'a dead letter is gone' using errcode = 'PD003';
        end if;
    end if;
    if cardinality(given) > 0 then
        update events set position = new.position, option = new.option from unnest(given) as new
        where events.run_id = new.run_id and events.id = new.id;
    end if;
    if cardinality(gone) > 0 then
        delete from events using unnest(gone) as old where events.run_id = old.run_id and events.id = old.id;
    end if;
    if cardinality(freed) > 0 then
        update events set position = null from unnest(freed) as old
        where events.run_id = old.run_id and events.id = old.id;
    end if;
    if cardinality(moved) > 0 then
        delete from events using unnest(moved) as old
        where events.run_id is null and events.name = old.name and events.number = old.number;
        get diagnostics counted = row_count;
        if counted <> cardinality(moved) then
            raise exception 'an event was taken meanwhile' using errcode = '40001';
        end if;
    end if;
    if cardinality(placed) > 0 then
        insert into events (
            number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, key, actor, at, reached,
            fields, value
        )
        select
            number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, key, actor, at, reached,
            fields, value
        from unnest(placed);
    end if;
    if cardinality(dead) > 0 then
        insert into dead_letters (id, name, fields, run_id, status, ended_at, consumed, at, value)
        select id, name, fields, run_id, status, ended_at, consumed, at, value from unnest(dead)
        on conflict (id) do update set
            name = excluded.name, fields = excluded.fields, run_id = excluded.run_id, status = excluded.status,
            ended_at = excluded.ended_at, consumed = excluded.consumed, at = excluded.at, value = excluded.value;
    end if;
    if cardinality(far) > 0 then
        update events set reached = new.reached from unnest(far) as new
        where events.run_id is null and events.name = new.name and events.number = new.number;
    end if;
    if cardinality(marks) > 0 then
        update waits set due_at = 0 from unnest(marks) as new
        where waits.run_id = new.run_id and waits.position = new.id and waits.due_at is distinct from 0;
    end if;
    if cardinality(knocks) > 0 then
        -- Who takes such a run meanwhile either waits here, and finds what it was given, or is its owner by now.
        select coalesce(array_agg(owned.id), '{}') into told from (
            select runs.id, runs.owner from runs join unnest(knocks) as knock on runs.id = knock.run_id
            order by runs.id for share of runs
        ) as owned
        where owned.owner <> engine and exists (select 1 from engines where engines.id = owned.owner and engines.alive);
        perform post_v1((select coalesce(array_agg(knock), '{}') from unnest(knocks) as knock where knock.run_id = any(told)));
    end if;
    perform write_runs_v1(w.new_runs, w.changed_runs);
    perform write_rest_v1(w);
    return told;
end
$$;

-- Mark engines without a sign of life as dead; their ids. It holds their rows, so it waits for batches that are being
-- committed, and their signs, so that none is renewed meanwhile; only then it looks again.
create function bury_v1() returns text[] language plpgsql as $$
declare
    silent text[];
    buried text[];
begin
    select array_agg(engines.id) into silent from engines left join heartbeats on heartbeats.engine_id = engines.id
    where engines.alive and (beat_at is null or beat_at + lease < clock_timestamp());
    if silent is null then
        return '{}';
    end if;
    perform 1 from engines where id = any(silent) order by id for update;
    perform 1 from heartbeats where engine_id = any(silent) order by engine_id for update;
    with dead as (
        update engines set alive = false where id = any(silent) and alive and not exists (
            select 1 from heartbeats where engine_id = engines.id and beat_at + lease >= clock_timestamp()
        )
        returning id, epoch
    )
    select coalesce(array_agg(id order by epoch), '{}') into buried from dead;
    delete from heartbeats where engine_id = any(buried);
    return buried;
end
$$;
