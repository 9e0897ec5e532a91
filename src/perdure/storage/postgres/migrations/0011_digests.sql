-- What steps and children were called with, in short, so that a replay notices when that changes. Entries from before have none.

alter table journal add column digest text not null default '';
alter table journal_archive add column digest text not null default '';

create type entry_v2 as (
    run_id text, seq bigint, "position" text, kind text, name text, value text, failure text, attempts bigint,
    started_at bigint, at bigint, digest text
);

-- What is set aside keeps its digest. Entries that come this way have none: they are of engines of an earlier Perdure.
create or replace function write_rest_v1(w writes_v1) returns void language plpgsql as $$
declare
    counted bigint;
begin
    if cardinality(w.archive) > 0 then
        insert into journal_archive (
            run_id, attempt, seq, position, kind, name, value, failure, attempts, started_at, at, digest
        )
        select
            j.run_id, a.attempt, j.seq, j.position, j.kind, j.name, j.value, j.failure, j.attempts, j.started_at, j.at,
            j.digest
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

-- A batch's entries, after the rest of it. The state is what that came to, as advance_v1 has it.
create function write_journal_v1(state integer, entries entry_v2[]) returns integer language plpgsql as $$
begin
    if state = 0 and cardinality(entries) > 0 then
        insert into journal (run_id, seq, position, kind, name, value, failure, attempts, started_at, at, digest)
        select run_id, seq, position, kind, name, value, failure, attempts, started_at, at, digest from unnest(entries);
    end if;
    return state;
end
$$;

-- The same after a batch that needed matching. Whom it told is handed through.
create function finish_journal_v1(told text[], entries entry_v2[]) returns text[] language plpgsql as $$
begin
    perform write_journal_v1(0, entries);
    return told;
end
$$;
