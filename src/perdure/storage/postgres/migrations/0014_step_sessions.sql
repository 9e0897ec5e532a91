-- Transactional steps prove at their beginning, too, that their run is their engine's, and the sessions of those that are not
-- any more can be found and ended. All is read from locks, which end with their transactions: nothing is left behind.

-- What a transaction of a step locks for itself. Transactions of other claims cannot be committed any more, so nobody waits
-- for those.
create function step_key_v1(run text, its_claim bigint, place text) returns bigint language sql stable
set search_path from current as $$
    select hashtextextended(current_schema() || ':step:' || run || ':' || its_claim || ':' || place, 1)
$$;

-- What all transactions of an engine's steps lock, each for itself: two keys, of which the first is the same for all engines.
create function step_family_v1() returns integer language sql stable set search_path from current as $$
    select hashtext(current_schema() || ':steps of engines')
$$;

-- The beginning of a step's transaction. The state is 0 if the body may begin, unless an entry comes with it, which was staged
-- before. The engine is dead: 1. The run is not its any more: 2. Another transaction of the step is under way: 4.
-- The mark lasts as long as the transaction does.
create function enter_step_v2(
    engine text, its_epoch bigint, run text, its_claim bigint, place text, mark text, out state integer, out entry staged
) language plpgsql set search_path from current as $$
begin
    perform pg_advisory_xact_lock_shared(step_family_v1(), hashtext(engine));
    state := 4;
    if pg_try_advisory_xact_lock(step_key_v1(run, its_claim, place)) then
        perform set_config('perdure.step', mark, true);
        state := case
            when not exists (select from engines where id = engine and epoch = its_epoch and alive) then 1
            when not exists (
                select from runs
                where id = run and owner = engine and claim = its_claim and hold_kind is null
                    and status in ('created', 'running', 'suspended', 'cancelling', 'rolling_back')
            ) then 2
            else 0
        end;
        select * into entry from staged where state = 0 and staged.run_id = run and staged.position = place;
    end if;
end
$$;

-- The end of it, as before. Only the commit follows: if none comes, the server gives the transaction up in this time, and with
-- it the rows of the engine and of the run, which others wait for.
create function stage_v2(
    silence_ms text, engine text, its_epoch bigint, mark text, run text, place text, step text, its_claim bigint,
    attempt bigint, value text, started_at bigint, at bigint
) returns integer language plpgsql set search_path from current as $$
begin
    perform set_config('idle_in_transaction_session_timeout', silence_ms, true);
    return stage_v1(engine, its_epoch, mark, run, place, step, its_claim, attempt, value, started_at, at);
end
$$;

-- Sessions, of users whose sessions this one may end, that have a step's transaction open and do nothing in it: their process
-- stands still, or the way to it is broken. A commit that is under way is left alone, since ending it would show everybody
-- what no standby has confirmed.
create function end_step_v1(run text, its_claim bigint, place text) returns bigint language sql
set search_path from current as $$
    select count(pg_terminate_backend(session.pid))
    from pg_locks as held join pg_stat_activity as session on session.pid = held.pid
    where held.locktype = 'advisory' and held.granted and held.objsubid = 1
        and held.database = (select oid from pg_database where datname = current_database())
        and (held.classid::bigint << 32) | held.objid::bigint = step_key_v1(run, its_claim, place)
        and held.pid <> pg_backend_pid() and pg_has_role(session.usesysid, 'usage')
        and (session.state like 'idle in transaction%' or session.wait_event = 'ClientRead')
$$;

-- The same for all steps of engines that were marked dead, whatever these do: none of it will be committed.
create function end_dead_steps_v1() returns bigint language sql set search_path from current as $$
    select count(pg_terminate_backend(session.pid))
    from pg_locks as held join pg_stat_activity as session on session.pid = held.pid
    where held.locktype = 'advisory' and held.granted and held.objsubid = 2
        and held.database = (select oid from pg_database where datname = current_database())
        and held.classid::bigint = (step_family_v1()::bigint & 4294967295)
        and held.pid <> pg_backend_pid() and pg_has_role(session.usesysid, 'usage')
        and session.wait_event is distinct from 'SyncRep'
        and exists (
            select from engines where not alive and hashtext(id)::bigint & 4294967295 = held.objid::bigint
        )
        and not exists (select from engines where alive and hashtext(id)::bigint & 4294967295 = held.objid::bigint)
$$;

-- Whether a step's transaction is open, and its session does not wait amid a request for what never comes: the server has no
-- timeout for that. One that copies waits for good reasons.
create function is_step_open_v1(run text, its_claim bigint, place text, silence interval) returns boolean language sql
set search_path from current as $$
    select exists (
        select from pg_locks as held join pg_stat_activity as session on session.pid = held.pid
        where held.locktype = 'advisory' and held.granted and held.objsubid = 1
            and held.database = (select oid from pg_database where datname = current_database())
            and (held.classid::bigint << 32) | held.objid::bigint = step_key_v1(run, its_claim, place)
            and (
                session.state = 'active' and session.wait_event = 'ClientRead'
                and session.state_change < clock_timestamp() - silence and session.query !~* '^\s*copy'
            ) is not true
    )
$$;
