-- What transactional steps came to, until it is in the journal.

create table staged (
    run_id text collate "C" not null,
    position text collate "C" not null,
    name text not null,
    claim bigint not null,
    attempt bigint not null,
    value text not null,
    started_at bigint not null,
    at bigint not null,
    primary key (run_id, position)
);

-- What is staged goes with the waits of its position, or with all waits of its run. Under READ COMMITTED that is seen here
-- which was committed while the batch waited for its runs' rows.
create or replace function write_waits_v1(cleared text[], dropped place_v1[], put wait_v1[], base bigint) returns void
language plpgsql as $$
begin
    if cardinality(cleared) > 0 then
        delete from waits where run_id = any(cleared);
        delete from staged where run_id = any(cleared);
    end if;
    if cardinality(dropped) > 0 then
        delete from waits using unnest(dropped) as gone where waits.run_id = gone.run_id and waits.position = gone.id;
        delete from staged using unnest(dropped) as gone where staged.run_id = gone.run_id and staged.position = gone.id;
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

-- Steps call these on connections that look for their own tables, not for Perdure's, so the functions know where those are.

-- The beginning of a step's transaction, after any other of the same position has ended: what is staged there, if anything.
-- The mark lasts as long as the transaction does.
create function enter_step_v1(run text, place text, mark text) returns setof staged language plpgsql
set search_path from current set lock_timeout = '3s' as $$
begin
    perform pg_advisory_xact_lock(hashtextextended(current_schema() || ':step:' || run || ':' || place, 1));
    perform set_config('perdure.step', mark, true);
    return query select * from staged where staged.run_id = run and staged.position = place;
end
$$;

-- The end of it: 0 if it may be committed. The engine is dead: 1. The run is not its any more: 2. The transaction is not
-- the one that was begun: 3. Until the commit, nobody can mark the engine as dead or change the run.
create function stage_v1(
    engine text, its_epoch bigint, mark text, run text, place text, step text, its_claim bigint, attempt bigint, value text,
    started_at bigint, at bigint
) returns integer language plpgsql set search_path from current set lock_timeout = '3s' as $$
begin
    if current_setting('perdure.step', true) is distinct from mark then
        return 3;
    end if;
    perform 1 from engines where id = engine and epoch = its_epoch and alive for key share;
    if not found then
        return 1;
    end if;
    perform 1 from runs
    where id = run and owner = engine and claim = its_claim and hold_kind is null
        and status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back')
    for share;
    if not found then
        return 2;
    end if;
    insert into staged (run_id, position, name, claim, attempt, value, started_at, at)
    values (run, place, step, its_claim, attempt, value, started_at, at);
    return 0;
end
$$;
